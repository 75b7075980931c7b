"""Result of a function whose kernel the budget ended: the elements that are final."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_debug.bridge import chip
from pallas_debug.bridge.hosted import lowering as hosted
from pallas_debug.bridge.jaxprs import arrays
from pallas_debug.bridge.lowering import hook
from pallas_debug.bridge.walk import origins
from pallas_debug.bridge.walk.origins import KernelOrigin
from pallas_debug.comparison import reference
from pallas_debug.comparison.compared import ComparedCall
from pallas_debug.errors import MachineError
from pallas_debug.machine.host import MachineHost, PreparedKernel, Unobserved
from pallas_debug.machine.pace import PartialRun


@dataclass(frozen=True, kw_only=True)
class PartialResult:
    """Result of a function, with the expected values where its own are not final.

    Attributes:
      final, elements: number of elements that are final, and of all.
      points: number of grid points that ran, and of all.
    """

    result: Any
    final: int
    elements: int
    points: tuple[int, int]


class _KnownResults(MachineHost):
    """Host that returns what a kernel has returned, in place of running it.

    Attributes:
      calls: digests of the kernels that were called.
    """

    def __init__(self, run: PartialRun) -> None:
        super().__init__(Unobserved())
        self._run = run
        self.calls: list[str] = []

    def run(self, prepared: PreparedKernel, arrays: Any, first: int) -> list[list[np.ndarray]]:
        self.calls.append(prepared.digest)
        if self.calls != [self._run.digest]:
            raise MachineError(SEVERAL)
        return [self._run.results]


SEVERAL = "the function calls more than one kernel"


def result_of(compared: ComparedCall, run: PartialRun, expected: Any) -> PartialResult:
    """Compute the result of a function from what its kernel has returned.

    Raises:
      MachineError: it calls other kernels too, or this one again.
    """
    given, host = (compared.args, compared.kwargs), _KnownResults(run)
    with chip.answering(compared.target), hosted.hosting(host), hook.unannounced():
        try:
            values = arrays.leaves(reference.result(compared.function, *given))
        except Exception as error:
            if host.calls == [run.digest]:
                raise
            raise MachineError(SEVERAL) from error
    found = origins.origins(compared.function, *given, compared.target)
    masks = [
        _final(origin, run, np.shape(value)) for origin, value in zip(found, values, strict=True)
    ]
    return PartialResult(
        result=arrays.replaced(expected, masks, values),
        final=sum(int(mask.sum()) for mask in masks),
        elements=sum(mask.size for mask in masks),
        points=(run.done, run.points),
    )


def _final(origin: KernelOrigin, run: PartialRun, shape: tuple[int, ...]) -> np.ndarray:
    """Mask of the elements of a result that come from final elements of the kernel."""
    if origin.captured is None or origin.captured.kernel.digest != run.digest:
        return np.zeros(shape, bool)
    known = run.final[origin.output].ravel()
    if origin.numbers is None:
        return known.reshape(shape)
    return np.asarray((origin.numbers >= 0) & known[origin.numbers])
