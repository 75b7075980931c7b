"""Run a function with the kernel machine in place of its kernels, outside any session."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import core as jax_core

from pallas_debug.bridge import jaxcompat
from pallas_debug.bridge.capture import capture
from pallas_debug.bridge.jaxprs import nested
from pallas_debug.bridge.programs import launch
from pallas_debug.machine.machine import Machine


def run(function: Callable[..., Any], *args: Any, **options: Any) -> list[np.ndarray]:
    """The function's results, flat.

    Args:
      options: of `Machine`.
    """
    jaxpr, consts = jaxcompat.opened(jax.make_jaxpr(function)(*args))
    return [np.asarray(x) for x in evaluate(jaxpr, consts, jax.tree.leaves(args), **options)]


def evaluate(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], **options: Any) -> list[Any]:
    known = dict(zip(jaxpr.constvars, consts, strict=True))
    known.update(zip(jaxpr.invars, args, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, jax_core.Literal) else known[atom]

    for eqn in jaxpr.eqns:
        values = [read(atom) for atom in eqn.invars]
        inner = nested.inlined(eqn)
        if eqn.primitive.name == "pallas_call":
            results: Sequence[Any] = call(eqn, values, **options)
        elif inner is not None:
            results = evaluate(*inner, values, **options)
        else:
            results = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
            results = results if eqn.primitive.multiple_results else [results]
        known.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def call(eqn: Any, values: Sequence[Any], **options: Any) -> Sequence[Any]:
    """The results of one kernel."""
    module = types.SimpleNamespace(axis_context=None)
    avals = [atom.aval for atom in eqn.invars]
    context = types.SimpleNamespace(avals_in=avals, module_context=module)
    captured = capture.capture(eqn.primitive.name, context, eqn.params)
    decoded = launch.launch(captured)
    (results,) = Machine(decoded, [launch.arrays(values)], **options).run()
    return results
