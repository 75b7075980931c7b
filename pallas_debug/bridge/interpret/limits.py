"""Features that jax's interpreters lack or do not simulate, and detection of kernels that use them.

`why_not_hlo` inspects a kernel's jaxpr; `LIMITS` is documentation. What it says about the installed
jax is tested in `tests/bridge/test_interpret.py`, kernel by kernel.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jax._src import core as jax_core
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.bridge.jaxprs.params import jaxprs_of

_BY_NAME = {
    "get_barrier_semaphore": "barrier semaphores",
    "prng_seed": "random number generator",
    "prng_random_bits": "random number generator",
    "delay": "delays",
    "trace_value": "trace values",
}
"""Primitives without a rule in HLO interpret mode, and the feature each belongs to."""

_OF_THE_GRID = ("program_id", "num_programs")
"""Primitives that HLO interpret mode supports only at the top level of a kernel."""


def why_not_hlo(params: Mapping[str, Any]) -> str | None:
    """Name the feature that a kernel uses and HLO interpret mode lacks; None if it can run.

    Args:
      params: parameters of `pallas_call`, `core_map` or `mpmd_map`.
    """
    axes = _own_axes(params)
    for jaxpr in jaxprs_of(params):
        for eqn, nested in _equations(jaxpr):
            lacking = _lacking(eqn, axes, nested=nested)
            if lacking is not None:
                return f"HLO interpret mode has no {lacking}"
    return None


def _own_axes(params: Mapping[str, Any]) -> frozenset[object]:
    """Axis names of the kernel's grid, or of the mesh of cores that it runs on."""
    names = set(getattr(params.get("grid_mapping"), "grid_names", None) or ())
    for mesh in (params.get("mesh"), *params.get("meshes", ())):
        names |= set(getattr(mesh, "shape", None) or ())
    return frozenset(names - {None})


def _equations(jaxpr: Any, *, nested: bool = False) -> Iterator[tuple[Any, bool]]:
    for eqn in jaxpr.eqns:
        yield eqn, nested
        for inner in jax_core.jaxprs_in_params(eqn.params):
            yield from _equations(inner, nested=True)


def _lacking(eqn: Any, axes: frozenset[object], *, nested: bool) -> str | None:
    name = str(eqn.primitive)
    if name in _BY_NAME:
        return _BY_NAME[name]
    if name == "dma_start":
        *_, device = eqn.params["tree"].unflatten(eqn.invars)
        if device is not None:
            return "remote DMAs"
        return "DMAs that add" if eqn.params.get("add") else None
    if name == "semaphore_signal":
        *_, device, core = eqn.params["args_tree"].unflatten(eqn.invars)
        return None if device is None and core is None else "signals to other devices and cores"
    if name == "axis_index" and _names(eqn.params["axis_name"]) & axes:
        return "axis index of a grid or of a mesh of cores"
    if name in _OF_THE_GRID and nested:
        return f"{name} within loops and branches"
    return None


def _names(axis_name: object) -> set[object]:
    return set(axis_name) if isinstance(axis_name, tuple | list) else {axis_name}


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A feature of TPUs, and its support in each mode.

    `yes` if jax simulates it, `with pallas-debug` if we add it, `no` if jax rejects the kernel; any
    other text describes what happens.
    """

    name: str
    hlo: str
    tpu: str


LIMITS: tuple[Limit, ...] = (
    Limit(name="remote DMAs", hlo="only where all devices are in step", tpu="yes"),
    Limit(name="barrier semaphores", hlo="no", tpu="yes"),
    Limit(name="signals to other devices and cores", hlo="no", tpu="yes"),
    Limit(name="DMAs that add", hlo="no", tpu="with pallas-debug"),
    Limit(name="program_id in loops and branches", hlo="no", tpu="yes"),
    Limit(name="axis index of a grid or of a mesh of cores", hlo="no", tpu="yes"),
    Limit(name="delays", hlo="no", tpu="yes"),
    Limit(name="random bits (prng_random_bits)", hlo="no", tpu="zeros"),
    Limit(name="stateful_uniform and keys of the TPU", hlo="no", tpu="no"),
    Limit(name="stochastic_round, pack_elementwise", hlo="no", tpu="no"),
    Limit(name="masked loads", hlo="yes", tpu="with pallas-debug"),
    Limit(name="references that are bitcast or reshaped", hlo="yes", tpu="with pallas-debug"),
    Limit(name="semaphore_read, waits that do not decrement", hlo="yes", tpu="with pallas-debug"),
    Limit(name="vmap with dimension semantics", hlo="yes", tpu="with pallas-debug"),
    Limit(name="copies that take time", hlo="done at once", tpu="done at the wait, or at once"),
    Limit(name="several cores", hlo="one after the other", tpu="num_cores_or_threads"),
    Limit(name="data races", hlo="silent", tpu="detect_races"),
    Limit(name="accesses out of bounds", hlo="silent, clamped", tpu="an error"),
    Limit(name="debug_check", hlo="silent", tpu="silent"),
    Limit(name="tiling, layouts, the size of VMEM", hlo="silent", tpu="silent"),
    Limit(name="the MXU's precision, time", hlo="silent", tpu="silent"),
)


def race_report() -> str:
    """Describe how the installed race detector handles a race."""
    defaults = {f.name: str(f.default) for f in dataclasses.fields(pltpu.InterpretParams)}
    if "on_race" not in defaults:
        return "prints a race and goes on"
    does = {"raise": "raises an exception", "warn": "prints a race and goes on"}
    return f"{does.get(defaults['on_race'], defaults['on_race'])}; on_race changes that"
