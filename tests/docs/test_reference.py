"""Generated reference pages: those that are committed are fresh, the others are on the site."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import generate
import pytest
from generator import environment, interfaces

import pallas_debug

ROOT = Path(__file__).parents[2]


def test_the_pages_are_fresh() -> None:
    command = [sys.executable, ROOT / "docs" / "generate.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert done.stdout == ""


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
    for name in pallas_debug._HOMES:
        assert f"\n## pallas_debug.{name}\n" in text, name


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    docs = ROOT / "docs"
    pages = {str(page.relative_to(docs)) for page in docs.rglob("*.md")}
    for page in pages | {f"reference/{name}" for name in generate.BUILT}:
        assert f": {page}\n" in navigation
    for name in generate.BUILT:
        assert not (docs / "reference" / name).exists(), f"{name} is written for the site alone"
