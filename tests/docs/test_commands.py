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
    "docs/guides/reading.md",
    "docs/guides/sweeps.md",
}
"""Pages whose costs and numbers of passes are those of the oldest libtpu that is supported."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in CHEAP else pytest.mark.slow, id=n) for n in PAGES],
)
def test_a_page_shows_what_its_commands_print(name: str, forks: str) -> None:
    if name in NUMBERS and not metadata.version("libtpu").startswith("0.0.42"):
        pytest.skip("costs and numbers of passes on the page are those of libtpu 0.0.42")
    python = sys.executable if name in STARTED else forks
    with commands.scratch_directory(python) as scratch:
        found = commands.differences(PAGES[name], scratch)
    assert not found, "\n\n".join(found)


@pytest.mark.parametrize(
    "shown, printed, agree",
    [
        ("ok, 11 of 19 passes changed something", "ok, 12 of 22 passes changed something", True),
        ("in 1.43s", "in 71.20s (0:01:11)", True),
        ("4,095 B   0.4 ms", "12,345 B  10.1 ms", True),
        ("a … c", "a b c", True),
        ("first\n…\nlast", "first\nlast", True),
        ("first\n…\nlast", "first\n2\n3\nlast", True),
        ("===== 2 passed =====", "========== 2 passed ==========", True),
        ("1 kernel for v5e", "2 kernels for v5e", False),
        ("failed (compile)", "failed (lowering)", False),
        ("first\nlast", "first\n2\nlast", False),
        ("first", "first\nlast", False),
        ("", "something", False),
        ("softmax.py:6", "softmax.py:7", False),
        ("a … c", "a\nc", False),
    ],
)
def test_times_sizes_and_what_is_left_out_may_differ(shown: str, printed: str, agree: bool) -> None:
    assert commands.agree(shown, printed) == agree


def test_rewriting_keeps_what_agrees_and_replaces_the_rest(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Text.\n\n<!-- run -->\n```console\n$ echo one\n…\n$ echo two\nthree\n```\n")
    with commands.scratch_directory() as scratch:
        text = commands.rewritten(page, scratch)
    assert text == ("Text.\n\n<!-- run -->\n```console\n$ echo one\n…\n$ echo two\ntwo\n```\n")
