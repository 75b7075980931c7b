"""Unused outputs of a function's kernels: backward dataflow, nothing runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pallas_debug.bridge.jaxprs import outputs, reads
from pallas_debug.bridge.walk.dataflow import programs
from pallas_debug.findings.outputs import Box
from pallas_debug.model import Target


@dataclass(frozen=True, kw_only=True)
class Unused:
    """Parts of the outputs of a kernel that none of its calls uses.

    Attributes:
      outputs: numbers of the outputs that are not used at all.
      read: for each output, the box that contains all that is read, if it is only sliced.
    """

    outputs: frozenset[int]
    read: tuple[Box | None, ...]


def unused_outputs(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    target: Target,
) -> dict[str, Unused]:
    """Outputs, or parts of them, that no call of a kernel uses, for each kernel by its digest.

    The function's results count as used. If none of a kernel's outputs is used, none is listed
    here: the kernel is called for another purpose.
    """
    jaxpr = programs.traced(function, args, kwargs, target)[0]
    found = outputs.reached(jaxpr, programs.digest)
    read = reads.parts(jaxpr, programs.digest)
    return {
        digest: Unused(
            outputs=frozenset(n for n, results in enumerate(reached) if not results),
            read=tuple(read[digest]),
        )
        for digest, reached in found.items()
        if any(reached)
    }
