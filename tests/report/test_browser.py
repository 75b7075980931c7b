"""The page in Chromium, opened from a disk: clicks, keys, what is shown of damaged data."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pages import DOUBLE, Browser, Write, kernel_id, open_kernel
from selenium.webdriver import Keys

STATUS = ".pd-current .pd-status"
ROWS = "[...document.querySelectorAll('.pd-current .pd-{} .pd-row')]"


@pytest.fixture
def page(write: Write) -> Path:
    return write()


def rows(browser: Browser, pane: str, suffix: str = "") -> list[str]:
    """Texts of the rows that are on the screen, without their numbers."""
    found: list[str] = browser.run(
        f"[...document.querySelectorAll('.pd-current .pd-{pane} .pd-row{suffix}')]"
        ".map(row => (row.querySelector('.pd-code') ?? row).textContent)"
    )
    return found


def choose(browser: Browser, pane: str, text: str) -> None:
    """Click on the first row with a text."""
    script = f"""
      const row = {ROWS.format(pane)}.find((row) => row.textContent.includes(args[0]));
      if (row) row.click();
      return Boolean(row);
    """
    browser.wait(script, text)


def active(browser: Browser) -> str:
    """Tag or class of the focused element, and its name."""
    found: str = browser.run(
        "(({className, tagName, ariaLabel, textContent}) => `${className || tagName}: "
        "${ariaLabel ?? textContent}`)(document.activeElement)"
    )
    return found


def test_opens_from_a_disk_without_an_error(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.text("h1") == "dumps"
    assert browser.run("location.protocol") == "file:"
    assert browser.errors() == []


@pytest.mark.slow
def test_a_line_of_source_marks_its_operations(browser: Browser, page: Path) -> None:
    open_kernel(browser, page, "double", "/t0/12-apply-vector-layout")
    choose(browser, "source", "o_ref[...] = x_ref[...] + x_ref[...]")
    marked = rows(browser, "text", ".pd-linked-2")
    assert any("arith.addf" in line for line in marked)
    assert not any("func.func @transform_0" in line for line in marked)
    assert browser.text(STATUS) == f"listed.py:10: {len(marked)} lines of 12-apply-vector-layout"
    selected = browser.run(
        f"{ROWS.format('text')}.filter(row => row.ariaSelected === 'true').length"
    )
    assert selected == len(marked)


@pytest.mark.slow
def test_an_operation_marks_its_line_of_source(browser: Browser, page: Path) -> None:
    open_kernel(browser, page, "double", "/t0/12-apply-vector-layout")
    choose(browser, "text", "arith.addf")
    assert rows(browser, "source", ".pd-linked-2") == ["    o_ref[...] = x_ref[...] + x_ref[...]"]
    choose(browser, "text", "func.func @transform_0")
    assert browser.text(STATUS) == "This line does not come from a Python line."


@pytest.mark.slow
def test_a_finding_is_below_its_line(browser: Browser, page: Path) -> None:
    browser.open(page)
    id_ = kernel_id(browser, "double")
    browser.click(".pd-finding .pd-quoted a")
    browser.wait("location.hash === args[0]", f"#{id_}/l10")
    browser.wait("document.querySelector('.pd-current .pd-source .pd-linked-2')")
    shown = rows(browser, "source")
    at = shown.index("    o_ref[...] = x_ref[...] + x_ref[...]")
    assert shown[at + 1] == "▲ OutOfBoundsRead: x_ref[32:40, 0:128] reaches 8 rows past x_ref"


@pytest.mark.slow
def test_the_text_before_and_after_a_pass(browser: Browser, page: Path) -> None:
    open_kernel(browser, page, "double", "/t0/10-infer-vector-layout")
    browser.press("d")
    browser.wait("document.querySelector('.pd-current .pd-added')")
    message = browser.text(".pd-current .pd-text .pd-pane-message")
    found = re.fullmatch(r"\+(\d+) −(\d+) lines against 09-tiling-propagation", message)
    assert found is not None
    signs = [line for line in rows(browser, "text", ".pd-added") if "layout" in line]
    assert signs
    assert browser.run("document.querySelectorAll('.pd-current .pd-added').length") == int(found[1])
    browser.press("d")
    browser.wait("!document.querySelector('.pd-current .pd-added')")
    browser.press("]")
    browser.wait(
        "document.querySelector('.pd-current .pd-text select').value === '0/12-apply-vector-layout'"
    )


@pytest.mark.slow
def test_find_in_a_text(browser: Browser, page: Path) -> None:
    open_kernel(browser, page, "double", "/t0/15-lower-to-llo")
    browser.wait("document.querySelector('.pd-current .pd-text .pd-row')")
    browser.press("/", "l", "l", "o", ".")
    shown = browser.wait("document.querySelector('.pd-current .pd-found').textContent")
    first, total = map(int, shown.split("/"))
    assert first == 1
    assert total > 1
    browser.press(Keys.ENTER)
    assert browser.text(".pd-current .pd-found") == f"2/{total}"
    browser.press(Keys.ENTER, shift=True)
    assert browser.text(".pd-current .pd-found") == f"1/{total}"
    browser.press(Keys.ESCAPE)
    assert active(browser).startswith("pd-lines: ")
    assert browser.run("location.hash") != "#overview"


@pytest.mark.slow
def test_the_whole_page_by_keys(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.press(Keys.TAB)
    assert active(browser) == "pd-skip: Skip to the content"
    browser.press(*[Keys.TAB] * 4)
    assert active(browser) == "BUTTON: Findings"
    browser.press("/")
    assert active(browser) == "INPUT: Filter kernels"
    browser.press(Keys.TAB, Keys.TAB)  # the first is the table, which may scroll
    assert active(browser) == "A: double"
    browser.press(Keys.ENTER)
    browser.wait("document.querySelector('.pd-current h2')?.textContent === 'double'")
    assert active(browser) == "H2: double"
    visited = []
    for _ in range(60):
        browser.press(Keys.TAB)
        visited.append(active(browser))
        if visited[-1] == "pd-lines: Python source":
            break
    else:
        pytest.fail(f"the source was not reached: {visited}")
    browser.press(*[Keys.ARROW_DOWN] * 9)
    browser.press(Keys.ENTER)
    assert browser.text(STATUS).startswith("listed.py:10: ")
    described = browser.run(
        "document.getElementById(document.activeElement.getAttribute('aria-activedescendant')).textContent"
    )
    assert "o_ref[...] = x_ref[...] + x_ref[...]" in described
    browser.press(Keys.ESCAPE)
    browser.wait("document.querySelector('#overview.pd-current')")
    browser.press("?")
    assert browser.run("document.querySelector('#keys').open")
    assert "next, previous selected line" in browser.text("#keys")
    browser.press(Keys.ESCAPE)
    assert not browser.run("document.querySelector('#keys').open")
    browser.press("/")
    assert active(browser) == "INPUT: Filter kernels"


@pytest.mark.slow
def test_parts_of_a_kernel_are_one_key_away(browser: Browser, page: Path) -> None:
    names = "[...document.querySelectorAll('#parts button')].map(b => b.textContent)"
    browser.open(page)
    assert browser.run(names) == ["Findings", "What would save cycles", "Kernels"]
    open_kernel(browser, page, "double")
    parts = browser.run(names)
    assert parts[:2] == ["Findings", "Bottleneck"]
    assert {"Timeline", "Source and operations"} <= set(parts)
    assert "Passes" in parts
    browser.run("([...document.querySelectorAll('#parts button')].at(-1).click(), true)")
    assert active(browser) == f"H3: {parts[-1]}"
    browser.wait("scrollY > 0")


WIDTHS = """
  [...document.querySelectorAll('.pd-current .pd-pane:not([hidden])')].map((pane) => pane.offsetWidth)
"""


@pytest.mark.slow
def test_panes_are_widened_by_keys_and_by_dragging(browser: Browser, page: Path) -> None:
    from selenium.webdriver import ActionChains

    open_kernel(browser, page, "double")
    source, text = browser.run(WIDTHS)
    browser.press(">")
    assert browser.run(WIDTHS) == [source + 60, text - 60]
    browser.press("<")
    edge = browser.driver.find_element("css selector", ".pd-current .pd-text .pd-edge")
    ActionChains(browser.driver).drag_and_drop_by_offset(edge, 100, 0).perform()
    assert browser.run(WIDTHS) == [source + 100, text - 100]
    browser.run("(document.querySelector('.pd-current .pd-edge').focus(), true)")
    browser.press(*[Keys.ARROW_LEFT] * 40)
    narrow, wide = browser.run(WIDTHS)
    assert narrow == 160
    assert narrow + wide == source + text
    browser.run(f"(location.hash = '#{kernel_id(browser, 'unaligned')}', true)")
    browser.wait("document.querySelector('.pd-current .pd-source .pd-row')")
    assert browser.run(WIDTHS) == [narrow, wide], "the widths are those of one kernel"
    browser.press("s")
    second = browser.wait(f"({WIDTHS}).length === 3 && ({WIDTHS})")
    assert min(second) >= 100, "the second text is as narrow as nothing"
    open_kernel(browser, page, "double")
    assert browser.run(WIDTHS) == [source, text], "the widths outlive the page"


def test_filter_of_kernels(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.press("/", *"unal")
    shown = "[...document.querySelectorAll('.pd-matrix tbody tr')].filter(r => !r.hidden).length"
    assert browser.run(shown) == 1
    assert browser.text(".pd-filter [role=status]") == "1 of 3"
    browser.press(Keys.ENTER)
    assert active(browser) == "A: unaligned"
    browser.press("/", Keys.ESCAPE)
    assert browser.run(shown) == 3


@pytest.mark.slow
def test_a_text_longer_than_the_screen_is_drawn_in_part(
    browser: Browser, dumps: Path, write: Write
) -> None:
    path = dumps / DOUBLE / "jaxpr.txt"
    path.write_text("".join(f"    a{n}:f32[] = add b c\n" for n in range(30_000)))
    open_kernel(browser, write(dumps), "double", "/jaxpr")
    browser.wait("document.querySelector('.pd-current .pd-text select').value === '-/jaxpr'")
    browser.wait("document.querySelector('.pd-current .pd-text .pd-row')")
    assert browser.run(f"{ROWS.format('text')}.length") < 150
    browser.run("(document.querySelector('.pd-current .pd-text .pd-lines').focus(), true)")
    browser.press(Keys.END)
    browser.wait(f"{ROWS.format('text')}.some(row => row.textContent.includes('a29999:f32[]'))")
    assert browser.run(f"{ROWS.format('text')}.at(-1).ariaSetSize") == "30000"


@pytest.mark.slow
def test_colours_can_be_chosen(browser: Browser, page: Path) -> None:
    browser.open(page, dark=True)
    background = "getComputedStyle(document.body).backgroundColor"
    dark = browser.run(background)
    browser.press("c")
    assert browser.run("document.documentElement.dataset.theme") == "light"
    light = browser.run(background)
    assert light != dark
    browser.press("c", "c")
    assert browser.run(background) == dark


def test_an_injected_script_does_not_run(browser: Browser, page: Path) -> None:
    evil = "<script>document.documentElement.dataset.evil = 1</script><b onclick=x>b</b>"
    style = '<p style="color: red" id="styled">p</p>'
    page.write_text(page.read_text().replace("</main>", f"{evil}{style}</main>"))
    browser.open(page)
    assert browser.run("document.documentElement.dataset.evil") is None
    assert (
        browser.run("getComputedStyle(document.querySelector('#styled')).color") != "rgb(255, 0, 0)"
    )
    errors = browser.errors()
    assert sum("Content Security Policy" in message for message in errors) >= 2


@pytest.mark.slow
def test_texts_of_a_hostile_dump_stay_text(browser: Browser, dumps: Path, write: Write) -> None:
    evil = "<img src=x onerror=document.title=1>"
    source = dumps / DOUBLE / "source.py"
    source.write_text(source.read_text().replace("import jax\n", f"import jax  # {evil}\u202e\n"))
    (dumps / DOUBLE / "jaxpr.txt").write_text(f"{evil}\u2028</script>\x1b[2J\n")
    kernel = dumps / DOUBLE / "kernel.json"
    document = json.loads(kernel.read_text()) | {"name": f"double{evil}"}
    kernel.write_text(json.dumps(document))
    open_kernel(browser, write(dumps), f"double{evil}", "/jaxpr")
    browser.wait("document.querySelector('.pd-current .pd-text .pd-row')")
    assert rows(browser, "text") == [f"{evil}\\u2028</script>\\x1b[2J"]
    assert f"import jax  # {evil}\\u202e" in rows(browser, "source")
    assert browser.run("document.images.length") == 0
    assert browser.run("document.title") == "dumps"
    assert browser.errors() == []


@pytest.mark.slow
def test_a_pass_with_an_odd_name_is_reached_from_the_table(
    browser: Browser, dumps: Path, write: Write
) -> None:
    path = dumps / DOUBLE / "v5e" / "compilation.json"
    document = json.loads(path.read_text())
    name = "t1/l7 %20#<b>\u202e"
    document["passes"][12]["name"] = name
    path.write_text(json.dumps(document))
    open_kernel(browser, write(dumps), "double", "/t0/jaxpr")
    browser.run(
        "([...document.querySelectorAll('.pd-current .pd-passes a')]"
        ".find(link => link.textContent.startsWith('12-')).click(), true)"
    )
    value = "document.querySelector('.pd-current .pd-text select').value"
    browser.wait(f"{value} === args[0]", "0/12-t1/l7 %20#<b>\\u202e")
    assert any("arith.addf" in line for line in rows(browser, "text"))


@pytest.mark.slow
def test_a_damaged_chunk_is_named(browser: Browser, page: Path) -> None:
    browser.open(page)
    id_ = kernel_id(browser, "double")
    text = page.read_text()
    head = f'id="c-{id_}-0-passes">'
    at = text.index(head) + len(head)
    page.write_text(text[:at] + "AAAA" + text[at + 40 :])
    browser.open(page, f"{id_}/t0")
    message = ".pd-current .pd-text .pd-pane-message"
    browser.wait("document.querySelector(args[0])?.textContent", message)
    assert browser.text(message).startswith("this part of the page is damaged: ")
    assert rows(browser, "source")


@pytest.mark.slow
def test_an_unknown_address_shows_the_overview(browser: Browser, page: Path) -> None:
    for fragment in ("k99/t3/l1", "%E0%A4%A", "constructor/t0"):
        browser.open(page, fragment)
        assert browser.run("document.querySelector('.pd-view.pd-current').id") == "overview"
        assert browser.errors() == []


@pytest.mark.slow
def test_the_summary_is_complete_without_a_script(browser: Browser, page: Path) -> None:
    browser.command("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.driver.get(page.as_uri())
        seen = browser.driver.find_element("css selector", "main").text
    finally:
        browser.command("Emulation.setScriptExecutionDisabled", value=False)
    for expected in (
        "double",
        "unaligned",
        "OutOfBoundsRead",
        "12-apply-vector-layout",
        "need JavaScript",
    ):
        assert expected in seen
