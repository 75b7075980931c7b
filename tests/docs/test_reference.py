"""Generated reference pages: those that are committed are fresh, the others are on the site."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import generate
import pytest
from generator import environment, interfaces

import pallas_debug

ROOT = Path(__file__).parents[2]


def generated(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, root / "docs" / "generate.py", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of what the generator reads and writes."""
    for name in ("docs", "pallas_debug", "kernels", "pytest_plugin"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    for name in ("README.md", "CONTRIBUTING.md", "llms.txt", "mkdocs.yml", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_the_pages_are_fresh() -> None:
    done = generated(ROOT, "--check")
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert done.stdout == ""


@pytest.mark.slow
def test_a_stale_page_is_named_and_left_alone(copy: Path) -> None:
    page = copy / "docs" / "reference" / "advice.md"
    page.write_text("# Advice\n\nAll is well.\n")
    done = generated(copy, "--check", "advice.md", "dump-format.md")
    assert done.returncode == 1
    assert done.stdout == "stale: docs/reference/advice.md\n"
    assert "python docs/generate.py" in done.stderr
    assert page.read_text() == "# Advice\n\nAll is well.\n"


@pytest.mark.slow
def test_a_missing_page_is_written_again_and_then_all_is_fresh(copy: Path) -> None:
    page = copy / "docs" / "reference" / "dump-format.md"
    page.unlink()
    done = generated(copy, "dump-format.md", "advice.md")
    assert done.returncode == 0
    assert done.stdout == "written: docs/reference/dump-format.md\n"
    assert page.read_text() == (ROOT / "docs" / "reference" / "dump-format.md").read_text()
    assert generated(copy, "dump-format.md", "advice.md").stdout == ""
    done = generated(copy, "dump.md")
    assert (done.returncode, done.stderr) == (2, "there is no page dump.md\n")


@pytest.mark.slow
def test_a_new_package_makes_the_maps_stale(copy: Path) -> None:
    """They are written where `--check` calls a page stale, which other tests show."""
    module = copy / "pallas_debug" / "ir" / "__init__.py"
    module.write_text('"""Text of compilers."""\n')
    written = generated(copy, "README.md", "CONTRIBUTING.md").stdout
    for page in ("README.md", "CONTRIBUTING.md"):
        assert f"written: {page}\n" in written
        assert "  ir/             Text of compilers.\n" in (copy / page).read_text()


def test_the_maps_name_every_package() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for path in (ROOT / "pallas_debug").rglob("*/__init__.py"):
        assert f" {path.parent.name}/ " in text, path


def test_an_environment_variable_without_a_description_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(environment.VARIABLES, "NO_COLOR")
    with pytest.raises(SystemExit, match=r"the code reads NO_COLOR; describe them"):
        environment.environment()


def test_the_page_on_python_has_every_public_function() -> None:
    """Also those that are added later: `check`, `verify`, `sweep` and `stats` were missing."""
    text = interfaces.python()
    for name in pallas_debug._HOMES.keys() - {"hookimpl"}:
        assert f"\n## pallas_debug.{name}\n" in text, name


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    docs = ROOT / "docs"
    pages = {str(page.relative_to(docs)) for page in docs.rglob("*.md")}
    for page in pages | {f"reference/{name}" for name in generate.BUILT}:
        assert f": {page}\n" in navigation
    for name in generate.BUILT:
        assert not (docs / "reference" / name).exists(), f"{name} is written for the site alone"
