"""Evaluation of a program whose kernels are run by the caller, one after the other.

The program is traced and its equations are evaluated one by one on the CPU; the caller runs each
kernel on the values of its operands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np

from pallas_debug.bridge import jaxcompat
from pallas_debug.bridge.capture import capture
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.dataflow.forward import Forward
from pallas_debug.bridge.interpret import interpret
from pallas_debug.bridge.jaxprs import arrays, nested
from pallas_debug.bridge.lowering import hook
from pallas_debug.bridge.normal_forms import BranchForm, Control, InnerJaxpr, LoopForm
from pallas_debug.bridge.walk import programs
from pallas_debug.errors import MachineError
from pallas_debug.model import Target

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class CalledKernel:
    """A kernel that a program is about to call.

    Attributes:
      path: position of the call in the program, as in `Forward`; `origins` uses the same for
        kernels outside loops.
      operands: values of its operands.
    """

    captured: Capture
    path: tuple[int, ...]
    operands: Sequence[Any]


RunKernel = Callable[[CalledKernel], Sequence[Array]]
"""Runs a kernel, and returns its results; an exception ends the evaluation."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TracedProgram:
    """A function with its arguments, traced."""

    jaxpr: Any
    consts: Sequence[Any]
    args: Sequence[Any]

    def run(self, kernel: RunKernel) -> Sequence[Any]:
        """Evaluate the program; return its results.

        Raises:
          MachineError: a kernel is called in a way that cannot be evaluated here.
        """
        return _Evaluation(kernel).run(InnerJaxpr(self.jaxpr, self.consts), self.args, None)


def trace(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], target: Target
) -> TracedProgram:
    """Trace a function in the same way as for the kernel machine."""
    with interpret.interpreting("machine"):
        jaxpr, consts, given = programs.traced(function, args, kwargs, target)
    values = [
        np.asarray(leaf, arrays.canonical(leaf.dtype)) if isinstance(leaf, np.ndarray) else leaf
        for leaf in given
    ]
    return TracedProgram(jaxpr=jaxpr, consts=consts, args=values)


class _Evaluation(Forward[Any, None]):
    """Walk with values: arrays."""

    def __init__(self, kernel: RunKernel) -> None:
        super().__init__()
        self._kernel = kernel

    def constant(self, value: Any) -> Any:
        return value

    def enters(self, eqn: Any, form: Control, inputs: Sequence[Any]) -> bool:
        return _calls_kernel(eqn)

    def plain(self, eqn: Any, inputs: list[Any], place: None) -> Sequence[Any]:
        name = eqn.primitive.name
        if eqn.primitive in hook.PRIMITIVES.values():
            captured = capture.of_equation(eqn)
            called = CalledKernel(captured=captured, path=tuple(self.path), operands=inputs)
            results = self._kernel(called)
            with jax.enable_x64(captured.enable_x64), jax.default_device(_cpu()):
                return [jax.numpy.asarray(result) for result in results]
        if _calls_kernel(eqn):
            raise MachineError(f"a kernel within `{name}` is not run on the kernel machine")
        if name.startswith("debug_"):
            return []  # it already printed, or called its callback, when the program was run
        with hook.unwatched(), jax.default_device(_cpu()):
            results = eqn.primitive.bind(*inputs, **eqn.primitive.get_bind_params(eqn.params))
        return results if eqn.primitive.multiple_results else [results]

    def reachable(self, eqn: Any, branch: BranchForm, place: None) -> Sequence[tuple[int, None]]:
        return [(min(max(int(branch.index), 0), len(branch.branches) - 1), place)]

    def join(
        self, branch: BranchForm, count: int, results: Sequence[tuple[int, Sequence[Any]]]
    ) -> Sequence[Any]:
        ((_, values),) = results
        return values

    def unrolls(self, loop: LoopForm) -> bool:
        if loop.length == 0:
            raise MachineError(
                "a kernel in a loop of no iterations is not run on the kernel machine"
            )
        return True

    def continues(self, value: Any, place: None) -> Literal["ends"] | None:
        return None if bool(value) else "ends"

    def element(self, array: Any, number: int | None) -> Any:
        return array[number]

    def stacked(self, rows: Sequence[Any]) -> Any:
        with jax.default_device(_cpu()):
            return jax.numpy.stack(list(rows))


def _calls_kernel(eqn: Any) -> bool:
    """Return whether an equation calls a kernel, at any depth."""
    return eqn.primitive in hook.PRIMITIVES.values() or any(
        _calls_kernel(inner)
        for jaxpr in nested.within(eqn.params)
        for inner in jaxcompat.opened(jaxpr)[0].eqns
    )


def _cpu() -> Any:
    return jax.local_devices(backend="cpu")[0]
