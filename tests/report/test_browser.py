"""The page in Chromium, opened from a disk: clicks, keys, names for screen readers, widths."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import Browser, Write

STATUS = ".pd-current .pd-status"


@pytest.fixture
def page(write: Write) -> Path:
    return write()


def kernel_id(browser: Browser, name: str) -> str:
    """Id of a kernel's section."""
    script = "[...document.querySelectorAll('.pd-matrix tbody a')].find(a => a.textContent === args[0]).hash"
    found: str = browser.run(script, name)
    return found[1:]


def open_double(browser: Browser, page: Path, rest: str = "", **how: int) -> None:
    browser.open(page, **how)  # type: ignore[arg-type]
    id_ = kernel_id(browser, "double")
    browser.open(page, id_ + rest, **how)  # type: ignore[arg-type]


def test_opens_from_a_disk_without_an_error(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.text("h1") == "dumps"
    assert browser.errors() == []


def test_a_line_of_source_marks_its_operations(browser: Browser, page: Path) -> None:
    open_double(browser, page, "/t0/12-apply-vector-layout")
    script = """
      const row = [...document.querySelectorAll('.pd-current .pd-source .pd-row')]
        .find((row) => row.textContent.includes('o_ref[...] = x_ref[...] + x_ref[...]'));
      row.click();
      return row.querySelector('.pd-no').textContent;
    """
    browser.wait("document.querySelectorAll('.pd-current .pd-source .pd-row').length > 9")
    assert browser.run(script) == "10"
    marked = browser.run(
        "[...document.querySelectorAll('.pd-current .pd-text .pd-linked-2')].map(r => r.textContent)"
    )
    assert any("vector" in line or "tpu" in line for line in marked)
    assert "listed.py:10: " in browser.text(STATUS)
    assert "lines of 12-apply-vector-layout" in browser.text(STATUS)


def test_an_operation_marks_its_line_of_source(browser: Browser, page: Path) -> None:
    open_double(browser, page, "/t0/12-apply-vector-layout")
    browser.wait("document.querySelector('.pd-current .pd-text .pd-row')")
    browser.run(
        """
        const row = [...document.querySelectorAll('.pd-current .pd-text .pd-row')]
          .find((row) => row.textContent.includes('arith.addf'));
        row.click();
        return true;
        """
    )
    marked = browser.run(
        "[...document.querySelectorAll('.pd-current .pd-source .pd-linked-2 .pd-no')].map(n => n.textContent)"
    )
    assert marked == ["10"]
