"""Texts of all findings and hints about the cases: read by a person, then kept here.

`pytest --bless` writes them, with the release of jax that the texts of the broken kernels are for. Read the difference before you commit it: at most six lines each, and every
cause true of its kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from broken_kernels.texts import ROOT
from cases import test_hints as hints
from cases import test_names as names
from cases import test_outputs as outputs
from cases import test_triton as triton

import pallas_debug
from pallas_debug.render import finding_text, hint_text

FOLDER = Path(__file__).with_name("texts")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A function that is found fault with, or hinted at.

    Attributes:
      name: name of the file with its text.
      reference: for a text of the comparison with it.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    engines: str = "static,machine"
    reference: Callable[..., Any] | None = None


def case(function: Callable[..., Any], *args: Any, **more: Any) -> Case:
    return Case(name=function.__name__, function=function, args=args, **more)


def compared(one: Case, reference: Callable[..., Any]) -> list[Case]:
    """A case without its reference, and with it."""
    with_it = f"{one.name}_compared"
    both = Case(name=with_it, function=one.function, args=one.args, reference=reference)
    return [one, both]


def rows(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


CASES = [
    *compared(
        case(hints.preload_erases, hints.TABLE, hints.PARTS),
        lambda t, p: t + p.reshape(16, 3, 128).sum(1),
    ),
    *compared(case(hints.column_sums, rows(160, 128)), lambda x: x.sum(0, keepdims=True)),
    case(hints.fours, rows(16), engines="static,compile"),
    case(outputs.left_panel_only, rows(8, 256)),
    case(outputs.copy_whole_blocks, rows(16, 700)),
    *compared(case(outputs.scaled_too_much, rows(20, 128)), lambda x: x * 2),
    case(triton.total, rows(16)),
    case(names.dictionary_for_a_tpu, rows(16, 128)),
    case(names.dictionary_for_triton, rows(16, 128)),
    case(names.class_for_triton, rows(16, 128)),
    case(names.shape_of_a_kernel_on_a_mesh, rows(16, 128)),
    case(names.newer_name, rows(16, 128)),
    case(names.masked_load, rows(16)),
]


def text(one: Case) -> str:
    """Findings, then hints. Call it in the project's folder, from which paths are shown."""
    verdict = pallas_debug.verify(
        one.function, *one.args, targets="v5e", engines=one.engines, reference=one.reference
    )
    found = list(map(finding_text, verdict.findings))
    shown = "\n\n".join([*found, *map(hint_text, verdict.hints)]) + "\n"
    return shown.replace(f"{ROOT}/", "")


def path(one: Case) -> Path:
    return FOLDER / f"{one.name}.txt"
