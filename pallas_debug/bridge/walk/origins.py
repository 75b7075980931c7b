"""Kernel outputs from which the results of a function come, element by element.

The function is traced, and the operations between its kernels and its results are followed as long
as they only move elements (reshape, slice, transpose, …) or change each element separately. They
are evaluated on element numbers instead of values, which gives the kernel element behind each
result element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from pallas_debug.bridge import primitives
from pallas_debug.bridge.capture import capture
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.dataflow.forward import Forward
from pallas_debug.bridge.jaxprs import nested
from pallas_debug.bridge.lowering import hook, trace
from pallas_debug.bridge.normal_forms import CallForm, Control
from pallas_debug.model import Target

MAX_ELEMENTS = 1 << 25
"""Maximum elements of a result whose numbers are moved; one that is a kernel's output has no limit.
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class KernelOrigin:
    """Source of a result.

    Attributes:
      captured: the kernel; None if the result does not come directly from a kernel.
      path: position of its call in the program, as in `Forward`.
      output: number of the output among the kernel's outputs.
      numbers: number of the kernel's element behind each element, in the shape of the result; -1
        for an element that comes from elsewhere. None if the result is the kernel's output.
      reason: why the origin is unknown, as the end of a sentence.
    """

    captured: Capture | None = None
    path: tuple[int, ...] = ()
    output: int = 0
    numbers: np.ndarray | None = None
    reason: str = ""


_NOT_OF_A_KERNEL = "it does not come straight from a kernel"


def origins(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], target: Target
) -> list[KernelOrigin]:
    """Origin of each array that a function returns, in jax's order of leaves."""
    jaxpr, _, _ = trace.jaxpr_of(function, args, kwargs, target)
    start = [KernelOrigin(reason=_NOT_OF_A_KERNEL)] * len(jaxpr.invars)
    constants = [KernelOrigin()] * len(jaxpr.constvars)
    found = _Origins().walk(jaxpr, constants, start, None)
    unknown = KernelOrigin(reason=_NOT_OF_A_KERNEL)
    return [unknown if o.captured is None and not o.reason else o for o in found]


class _Origins(Forward[KernelOrigin, None]):
    """Walk with the origins of values."""

    def constant(self, value: Any) -> KernelOrigin:
        return KernelOrigin()

    def enters(self, eqn: Any, form: Control, inputs: Sequence[KernelOrigin]) -> bool:
        return isinstance(form, CallForm)

    def plain(self, eqn: Any, inputs: list[KernelOrigin], place: None) -> list[KernelOrigin]:
        if eqn.primitive in hook.PRIMITIVES.values():
            kernel, path = capture.of_equation(eqn), tuple(self.path)
            outputs = range(len(eqn.outvars))
            return [KernelOrigin(captured=kernel, path=path, output=i) for i in outputs]
        name = eqn.primitive.name
        sources = [origin for origin in inputs if origin.captured is not None]
        if not sources:  # earlier reasons are kept
            reason = next((o.reason for o in inputs if "`" in o.reason), "")
            return [KernelOrigin(reason=reason)] * len(eqn.outvars)
        if len(sources) == 1 and len(eqn.outvars) == 1:
            (source,) = sources
            operand = eqn.invars[inputs.index(source)]
            shape = eqn.outvars[0].aval.shape
            row = primitives.TABLE.get(name)
            if row is not None and row.is_by_element and operand.aval.shape == shape:
                return [source]
        if name in primitives.MOVES and len({(s.captured, s.output) for s in sources}) == 1:
            return [_moved(eqn, inputs, sources[0])]
        captured = sources[0].captured
        of = "" if captured is None else captured.kernel.name
        why = f"it is computed by `{name}` from a result of kernel `{of}`"
        return [KernelOrigin(reason=why)] * len(eqn.outvars)


def _moved(eqn: Any, inputs: Sequence[KernelOrigin], source: KernelOrigin) -> KernelOrigin:
    if sum(math.prod(a.aval.shape) for a in (*eqn.invars, *eqn.outvars)) > MAX_ELEMENTS:
        return KernelOrigin(reason="the result is too large to follow its elements")
    given = [
        _numbers(origin, atom.aval.shape) for origin, atom in zip(inputs, eqn.invars, strict=True)
    ]
    with hook.unwatched(), jax.default_device(jax.local_devices(backend="cpu")[0]):
        (moved,) = nested.bound(eqn, given)
    return replace(source, numbers=np.asarray(moved))


def _numbers(origin: KernelOrigin, shape: tuple[int, ...]) -> Any:
    if origin.captured is None:
        return jax.numpy.full(shape, -1, np.int32)
    if origin.numbers is not None:
        return jax.numpy.asarray(origin.numbers)
    return jax.numpy.arange(math.prod(shape), dtype=np.int32).reshape(shape)
