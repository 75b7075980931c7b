"""Evaluation of a program up to a call of a kernel: jax runs what comes before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from pallas_debug.bridge.capture import capture
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.dataflow.forward import Forward
from pallas_debug.bridge.jaxprs import nested
from pallas_debug.bridge.lowering import hook, raised, trace
from pallas_debug.bridge.normal_forms import CallForm, Control
from pallas_debug.errors import MachineError
from pallas_debug.model import Target


def called(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    target: Target,
    path: tuple[int, ...],
) -> tuple[Capture, Sequence[Any]]:
    """Return the kernel that a function calls, and the values of its operands.

    Args:
      path: position of the call in the program, as in `Forward`, outside loops and branches.

    Raises:
      MachineError: there is no such call, or a kernel before it stops at a fault.
    """
    jaxpr, consts, given = trace.jaxpr_of(function, args, kwargs, target)
    reached: list[Capture] = []

    def operands(*values: Any) -> Sequence[Any]:
        try:
            _UpTo(path).walk(jaxpr, consts, values, None)
        except _Reached as call:
            reached.append(call.captured)
            return call.operands
        raise MachineError("the function did not call its kernel again")

    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        try:
            values = jax.block_until_ready(jax.jit(operands)(*given))
        except jax.errors.JaxRuntimeError as error:  # of a kernel before it
            raise MachineError(raised.in_a_line(error)) from error
    return reached[0], values


class _Reached(Exception):
    """The call is the next equation."""

    def __init__(self, captured: Capture, operands: Sequence[Any]) -> None:
        super().__init__()
        self.captured, self.operands = captured, operands


class _UpTo(Forward[Any, None]):
    """Walk with traced values that ends at the call of a kernel."""

    def __init__(self, path: tuple[int, ...]) -> None:
        super().__init__()
        self._end = path

    def enters(self, eqn: Any, form: Control, inputs: Sequence[Any]) -> bool:
        return isinstance(form, CallForm)

    def plain(self, eqn: Any, inputs: list[Any], place: None) -> Sequence[Any]:
        if tuple(self.path) == self._end and eqn.primitive in hook.PRIMITIVES.values():
            raise _Reached(capture.of_equation(eqn), inputs)
        if eqn.primitive.name.startswith("debug_"):
            return []  # it already printed, or called its callback, when the program was run
        return nested.bound(eqn, inputs)
