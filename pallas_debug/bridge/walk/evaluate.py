"""Evaluation of a program whose kernels are run by the caller, one after the other.

The program is traced and its equations are evaluated one by one on the CPU. At each kernel the
evaluation pauses and yields the kernel with the values of its operands, so that a run can be ended
at any kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from pallas_debug.bridge import chip, jaxcompat
from pallas_debug.bridge.capture import capture
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.interpret import interpret
from pallas_debug.bridge.jaxcompat import conditionals, loops
from pallas_debug.bridge.jaxprs import arrays, nested
from pallas_debug.bridge.lowering import hook
from pallas_debug.errors import MachineError
from pallas_debug.model import Target

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class CalledKernel:
    """A kernel that a program is about to call.

    Attributes:
      path: position of the call in the program: position of the equation in each nested program,
        and iteration of each loop. `origins` uses the same path for kernels outside loops.
      operands: values of its operands.
    """

    captured: Capture
    path: tuple[int, ...]
    operands: Sequence[Any]


Calls = Generator[CalledKernel, Sequence[Array], Sequence[Any]]
"""Generator that yields each kernel, is sent the kernel's results, and returns the program's."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TracedProgram:
    """A function with its arguments, traced."""

    jaxpr: Any
    consts: Sequence[Any]
    args: Sequence[Any]

    def calls(self) -> Calls:
        """Evaluate the program up to each of its kernels.

        Raises:
          MachineError: a kernel is called in a way that cannot be evaluated here.
        """
        return _walk(self.jaxpr, self.consts, self.args, ())


def trace(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], target: Target
) -> TracedProgram:
    """Trace a function in the same way as for the kernel machine."""
    call, given = arrays.of_arrays(function, args, kwargs)

    shapes = [jax.ShapeDtypeStruct(leaf.shape, arrays.canonical(leaf.dtype)) for leaf in given]
    with chip.answering(target), interpret.interpreting("machine"), hook.without_caches():
        jaxpr, consts = jaxcompat.opened(jax.make_jaxpr(call)(*shapes))
    values = [
        np.asarray(leaf, shape.dtype) if isinstance(leaf, np.ndarray) else leaf
        for leaf, shape in zip(given, shapes, strict=True)
    ]
    return TracedProgram(jaxpr=jaxpr, consts=consts, args=values)


def _walk(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], path: tuple[int, ...]) -> Calls:
    known = nested.JaxprValues((*jaxpr.constvars, *jaxpr.invars), (*consts, *args))
    for position, eqn in enumerate(jaxpr.eqns):
        results = yield from _equation(eqn, known.read(eqn.invars), (*path, position))
        known.bind(eqn.outvars, results)
    return known.read(jaxpr.outvars)


def _equation(eqn: Any, inputs: Sequence[Any], path: tuple[int, ...]) -> Calls:
    if eqn.primitive in hook.PRIMITIVES.values():
        return (yield from _kernel(eqn, inputs, path))
    if not _num_kernels(eqn):
        return _evaluated(eqn, inputs)
    inline = nested.inlined(eqn)
    if inline is not None:
        return (yield from _walk(*inline, inputs, path))
    if eqn.primitive is conditionals.cond_p:
        index, *rest = inputs
        branches = eqn.params["branches"]
        chosen = branches[min(max(int(index), 0), len(branches) - 1)]
        return (yield from _walk(*jaxcompat.opened(chosen), rest, path))
    if eqn.primitive is loops.while_p:
        return (yield from _while(eqn.params, inputs, path))
    if eqn.primitive is loops.scan_p:
        return (yield from _scan(eqn.params, inputs, path))
    raise MachineError(f"a kernel within `{eqn.primitive.name}` is not run on the kernel machine")


def _kernel(eqn: Any, inputs: Sequence[Any], path: tuple[int, ...]) -> Calls:
    captured = capture.of_equation(eqn)
    results = yield CalledKernel(captured=captured, path=path, operands=inputs)
    with jax.enable_x64(captured.enable_x64), jax.default_device(_cpu()):
        return [jax.numpy.asarray(result) for result in results]


def _evaluated(eqn: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    if eqn.primitive.name.startswith("debug_"):
        return []  # it already printed, or called its callback, when the program was run
    with hook.unwatched(), jax.default_device(_cpu()):
        results = eqn.primitive.bind(*inputs, **eqn.primitive.get_bind_params(eqn.params))
    return results if eqn.primitive.multiple_results else [results]


def _while(params: Mapping[str, Any], inputs: Sequence[Any], path: tuple[int, ...]) -> Calls:
    of_condition, of_body, carry = nested.while_operands(params, inputs)
    iteration = 0
    while True:
        condition = jaxcompat.opened(params["cond_jaxpr"])
        (goes_on,) = yield from _walk(*condition, [*of_condition, *carry], (*path, iteration, 0))
        if not bool(goes_on):
            return carry
        body = jaxcompat.opened(params["body_jaxpr"])
        carry = list((yield from _walk(*body, [*of_body, *carry], (*path, iteration, 1))))
        iteration += 1


def _scan(params: dict[str, Any], inputs: Sequence[Any], path: tuple[int, ...]) -> Calls:
    constants, carry, stacked = nested.scan_operands(params, inputs)
    length = params["length"]
    order = range(length - 1, -1, -1) if params["reverse"] else range(length)
    if not length:
        raise MachineError("a kernel in a loop of no iterations is not run on the kernel machine")
    rows: dict[int, list[Any]] = {}
    for iteration in order:
        slices = [array[iteration] for array in stacked]
        body = jaxcompat.opened(params["jaxpr"])
        results = yield from _walk(*body, [*constants, *carry, *slices], (*path, iteration))
        carry, rows[iteration] = list(results[: len(carry)]), list(results[len(carry) :])
    outputs = zip(*(rows[i] for i in range(length)), strict=True)
    with jax.default_device(_cpu()):
        return [*carry, *(jax.numpy.stack(list(of_output)) for of_output in outputs)]


def _num_kernels(eqn: Any) -> int:
    if eqn.primitive in hook.PRIMITIVES.values():
        return 1
    inner = (e for jaxpr in nested.within(eqn.params) for e in jaxcompat.opened(jaxpr)[0].eqns)
    is_loop = eqn.primitive in (loops.scan_p, loops.while_p)
    return sum(map(_num_kernels, inner)) * (2 if is_loop else 1)


def _cpu() -> Any:
    return jax.local_devices(backend="cpu")[0]
