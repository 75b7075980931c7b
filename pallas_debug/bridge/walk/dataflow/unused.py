"""Unused outputs of a function's kernels: backward dataflow, nothing runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pallas_debug.bridge.jaxprs import outputs
from pallas_debug.bridge.walk.dataflow import programs
from pallas_debug.model import Target


def unused_outputs(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    target: Target,
) -> dict[str, frozenset[int]]:
    """Outputs that no call of a kernel uses, by number, for each kernel by its digest.

    The function's results count as used. If none of a kernel's outputs is used, none is listed
    here: the kernel is called for another purpose.
    """
    jaxpr = programs.traced(function, args, kwargs, target)[0]
    found = outputs.reached(jaxpr, programs.digest)
    return {
        digest: frozenset(n for n, results in enumerate(reached) if not results)
        for digest, reached in found.items()
        if any(reached)
    }
