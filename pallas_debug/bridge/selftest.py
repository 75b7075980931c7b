"""Compares what this room hooks into with the installed jax.

Run at first use of a session and by `pallas-debug doctor`: a jax that moved something is met with
a sentence, not with an AttributeError from the depths.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from pallas_debug.bridge import versions
from pallas_debug.errors import IncompatibleJaxError


def _lowering_rules() -> str | None:
    from jax._src.interpreters import mlir

    from pallas_debug.bridge.lowering import hook

    for name, primitive in hook.PRIMITIVES.items():
        entry = mlir._lowerings.get(primitive)
        if not callable(getattr(entry, "rule", None)):
            return f"the lowering rule of {name} is not where it was"
    return None


def _signature(find: Callable[[], Any], *parameters: str) -> str | None:
    function = find()
    missing = set(parameters) - set(inspect.signature(function).parameters)
    if missing:
        return f"{function.__name__} has no parameter {', '.join(sorted(missing))}"
    return None


def _tracing() -> str | None:
    from jax._src.pallas import pallas_call

    return _signature(lambda: pallas_call._trace_kernel_to_jaxpr)


def _dispatch() -> str | None:
    from jax._src import pjit

    return _signature(lambda: pjit._get_fastpath_data, "executable") or _signature(
        lambda: pjit._pjit_call_impl_python, "jaxpr"
    )


def _grid_mapping() -> str | None:
    import dataclasses

    from jax._src.pallas import core

    wanted = {"grid", "grid_names", "block_mappings", "num_index_operands", "num_inputs"}
    missing = wanted - {f.name for f in dataclasses.fields(core.GridMapping)}
    if missing:
        return f"GridMapping has no {', '.join(sorted(missing))}"
    wanted = {"block_shape", "index_map_jaxpr", "array_aval", "transformed_block_aval"}
    missing = wanted - {f.name for f in dataclasses.fields(core.BlockMapping)}
    return f"BlockMapping has no {', '.join(sorted(missing))}" if missing else None


def _interpret() -> str | None:
    from pallas_debug.bridge.interpret import interpret

    return interpret.fits()


def _tpu_interpret() -> str | None:
    from pallas_debug.bridge.interpret import tpu_interpret

    return tpu_interpret.fits()


def _chip() -> str | None:
    from pallas_debug.bridge import chip

    return _signature(lambda: chip.tpu_info.get_device_kind) or _signature(
        lambda: chip.tpu_info.get_num_device_cores
    )


def _mosaic() -> str | None:
    from jax._src.pallas.mosaic import lowering
    from jax.experimental import mosaic

    print_params = ("fmt", "ordered", "in_tree", "static_args", "has_placeholders")
    return _signature(lambda: mosaic.lower_module_to_custom_call, "module") or _signature(
        lambda: lowering._debug_print_rule, *print_params
    )


CHECKS: dict[str, Callable[[], str | None]] = {
    "capture: lowering rules": _lowering_rules,
    "capture: lines of kernels under grad": _tracing,
    "capture: runs of jitted programs": _dispatch,
    "capture: grid and blocks": _grid_mapping,
    "interpret modes": _interpret,
    "TPU interpret mode": _tpu_interpret,
    "chip while tracing": _chip,
    "Mosaic module": _mosaic,
}


@functools.cache
def results() -> dict[str, str | None]:
    """For each of our hooks: what does not fit the installed jax, or None."""
    found: dict[str, str | None] = {}
    for name, check in CHECKS.items():
        try:
            found[name] = check()
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def require() -> None:
    """Go on only with a jax that fits.

    Raises:
      IncompatibleJaxError: one sentence with what does not.
    """
    bad = {name: why for name, why in results().items() if why is not None}
    if bad:
        jax = versions.installed().get("jax", "none")
        listed = "; ".join(f"{name} ({why})" for name, why in bad.items())
        raise IncompatibleJaxError(
            f"jax {jax} is not one that this pallas-debug can hook into: {listed}. "
            f"Upgrade pallas-debug, or use a jax from {versions.OLDEST} on that it knows."
        )
