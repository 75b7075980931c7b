"""Screens as text, and golden files of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pilot import screen_text, style_text
from textual.app import App

GOLDEN = Path(__file__).parent / "golden"
RAW = Path(__file__).parents[1] / "store" / "data"


@pytest.fixture
def raw() -> Path:
    """Raw dumps by the real compiler: `<libtpu>/<kernel>/`."""
    return RAW


@pytest.fixture
def golden(blessed: Callable[[Path, str], None]) -> Callable[[App[None], str], None]:
    """Compares a screen with `golden/NAME.txt`; `--bless` writes it."""
    return lambda app, name: blessed(GOLDEN / f"{name}.txt", screen_text(app))


@pytest.fixture
def golden_in_colour(blessed: Callable[[Path, str], None]) -> Callable[[App[None], str], None]:
    """Compares a screen and its styles with `golden/NAME.txt`; `--bless` writes it."""
    return lambda app, name: blessed(GOLDEN / f"{name}.txt", screen_text(app) + style_text(app))


@pytest.fixture(scope="session")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump directory that the installed command made: a kernel for two targets, no schedule."""
    folder = tmp_path_factory.mktemp("tui") / "dumps"
    command = Path(sys.executable).with_name("pallas-debug")
    kernel = ("dump", "pallas_debug_kernels:vector_add", "--to", str(folder))
    subprocess.run(
        [command, *kernel, "--target", "v5e,v6e", "--stages", "mosaic"],
        check=True,
        capture_output=True,
    )
    return folder
