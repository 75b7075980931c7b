"""The list of the kernels of the modules here."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from pallas_debug_kernels.broken import BrokenKernel

KERNELS: list[BrokenKernel] = []

Function = Callable[..., Any]


def fault(
    kind: str, summary: str, reference: Function, *args: Any, **more: Any
) -> Callable[[Function], Function]:
    """Decorate a function that calls a broken kernel, with `repaired=True` its repaired twin.

    Args:
      args: arguments of the function and of `reference`.
      more: further attributes of `BrokenKernel`.
    """

    def add(function: Function) -> Function:
        repaired = functools.partial(function, repaired=True)
        kernel = BrokenKernel(
            fault=kind, summary=summary, function=function, repaired=repaired,
            reference=reference, args=args, **more,
        )  # fmt: skip
        KERNELS.append(kernel)
        return function

    return add
