"""Texts of all findings about the broken kernels: read by a person, then kept here.

`pytest --bless -m ""` writes them, with the oldest jax that the project supports. Read the
difference before you commit it: at most six lines each, and every cause true of its kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

import pallas_debug
from broken_kernels import BrokenKernel
from pallas_debug.findings.faults import Fault
from pallas_debug.render import finding_text
from pallas_debug.verdict import Verdict

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).with_name("texts")


def verified(
    kernel: BrokenKernel, function: Callable[..., Any], *, compared: bool = False
) -> Verdict:
    is_compiled = kernel.refused and kernel.fault != Fault.VALUE_MISMATCH
    engines = "static,machine,compile" if is_compiled else "static,machine"
    with jax.enable_x64(kernel.x64):
        return pallas_debug.verify(
            function,
            *kernel.make_args(),
            targets=kernel.targets,
            engines=engines,
            reference=kernel.reference if compared else None,
        )


def is_compared(kernel: BrokenKernel) -> bool:
    return kernel.fault in (Fault.VALUE_MISMATCH, Fault.LOW_PRECISION_PRODUCT)


def text(verdict: Verdict) -> str:
    """All findings of a verdict. Call it in the project's folder, from which paths are shown."""
    shown = "\n\n".join(map(finding_text, verdict.findings)) + "\n"
    return shown.replace(f"{ROOT}/", "")  # jax's messages have whole paths


def path(kernel: BrokenKernel) -> Path:
    return FOLDER / f"{kernel.name}.txt"
