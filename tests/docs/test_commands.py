"""Command output in the README and the pages, compared with what the commands print."""

from __future__ import annotations

import importlib.util
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def load(path: Path) -> ModuleType:
    """A script of `docs/`, which is no package."""
    name = f"docs_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


commands = load(ROOT / "docs" / "commands.py")

PAGES = {str(page.relative_to(ROOT)): page for page in commands.pages()}

CHEAP = {
    "README.md",
    "docs/quickstart.md",
    "docs/guides/checks.md",
    "docs/guides/verify.md",
}
"""Pages that run each time: the first that one reads, and those of commands used most."""

STARTED = {"docs/guides/in-code.md"}
"""Pages whose commands start Python: it prints that jax is not imported."""


NUMBERS = {
    "docs/guides/performance.md",
    "docs/guides/sweeps.md",
}
"""Pages whose numbers are those of the oldest libtpu that is supported."""


def test_there_are_pages_with_commands() -> None:
    assert {"README.md", "docs/quickstart.md", "docs/guides/dumping.md"} <= set(PAGES)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in CHEAP else pytest.mark.slow, id=n) for n in PAGES],
)
def test_a_page_shows_what_its_commands_print(name: str, forks: str) -> None:
    if name in NUMBERS and not metadata.version("libtpu").startswith("0.0.42"):
        pytest.skip("the numbers of performance on the pages are those of libtpu 0.0.42")
    python = sys.executable if name in STARTED else forks
    with commands.scratch_directory(python) as scratch:
        found = commands.differences(PAGES[name], scratch)
    assert not found, "\n\n".join(found)


@pytest.mark.parametrize(
    "shown, printed",
    [
        ("ok, 11 of 19 passes changed something", "ok, 12 of 22 passes changed something"),
        ("in 1.43s", "in 12.01s"),
        ("in 1.43s", "in 71.20s (0:01:11)"),
        ("4,095 B   0.4 ms", "12,345 B  10.1 ms"),
        ("a … c", "a b c"),
        ("first\n…\nlast", "first\nlast"),
        ("first\n…\nlast", "first\n2\n3\nlast"),
        ("===== 2 passed =====", "========== 2 passed =========="),
    ],
)
def test_what_may_differ(shown: str, printed: str) -> None:
    assert commands.agree(shown, printed)


@pytest.mark.parametrize(
    "shown, printed",
    [
        ("1 kernel for v5e", "2 kernels for v5e"),
        ("failed (compile)", "failed (lowering)"),
        ("first\nlast", "first\n2\nlast"),
        ("first", "first\nlast"),
        ("", "something"),
        ("softmax.py:6", "softmax.py:7"),
        ("a … c", "a\nc"),
    ],
)
def test_what_may_not_differ(shown: str, printed: str) -> None:
    assert not commands.agree(shown, printed)


def test_digests_agree_under_the_jax_of_the_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, printed = (
        "softmax-0123abcd ok\n… flash-00000000",
        "softmax-ffffffff ok\nin flash-00000001",
    )
    for jax_version, is_tolerant in (("0.10.2", False), ("0.12.1", True)):
        monkeypatch.setattr(commands.metadata, "version", lambda name, found=jax_version: found)
        assert commands.agree(shown, printed) == is_tolerant


def test_rewriting_renews_digests_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- run -->\n```console\n$ echo a-0123abcd b c-11111111\na-ffffffff …\n```\n")
    with commands.scratch_directory() as scratch:
        assert "\na-0123abcd …\n" in commands.rewritten(page, scratch)


def test_a_difference_names_page_command_and_lines(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- run -->\n```console\n$ echo one\none\n$ echo two\nthree\n```\n")
    with commands.scratch_directory() as scratch:
        (found,) = commands.differences(page, scratch)
    assert found.startswith("page.md: $ echo two\n")
    assert "-three\n+two" in found


def test_files_exit_codes_and_continued_lines(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- file: a/b.txt -->\n```text\nhello\n```\n\n"
        "<!-- run -->\n```console\n$ cat \\\n    a/b.txt\nhello\n$ false\n$ echo $?\n1\n```\n\n"
        "<!-- run one -->\n```console\n$ echo '$ x'; echo y\n$ x\ny\n```\n"
    )
    with commands.scratch_directory() as scratch:
        assert commands.differences(page, scratch) == []


def test_rewriting_keeps_what_agrees_and_replaces_the_rest(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Text.\n\n<!-- run -->\n```console\n$ echo one\n…\n$ echo two\nthree\n```\n")
    with commands.scratch_directory() as scratch:
        text = commands.rewritten(page, scratch)
    assert text == ("Text.\n\n<!-- run -->\n```console\n$ echo one\n…\n$ echo two\ntwo\n```\n")
