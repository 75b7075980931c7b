"""Findings and hints about the cases, word for word."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax
import pytest
from broken_kernels.test_broken_kernels import OF_JAX
from broken_kernels.texts import ROOT
from cases.texts import CASES, Case, path, text

from pallas_debug.render import MAX_LINES

pytestmark = pytest.mark.usefixtures("quick_to_compile")


@pytest.mark.skipif(jax.__version__ != OF_JAX, reason="the texts name what another jax has not")
@pytest.mark.parametrize("one", CASES, ids=lambda one: one.name)
def test_each_has_its_text(
    one: Case, blessed: Callable[[Path, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)  # from which paths are shown
    shown = text(one)
    blessed(path(one), shown)
    assert all(len(found.splitlines()) <= MAX_LINES for found in shown.split("\n\n")), shown
