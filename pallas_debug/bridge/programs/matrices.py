"""Decode operations on the registers of the matrix units."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from pallas_debug.bridge import jaxcompat
from pallas_debug.bridge.jaxcompat import tpu_primitives
from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.accesses import place, registers
from pallas_debug.bridge.programs.decode import Decoder, rule


@rule(tpu_primitives.matmul_push_rhs_p)
def _push(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> None:
    params = eqn.params
    step = ir.MatrixPush(
        site=site,
        value=decoder.reg(inputs[0]),
        unit=int(params["mxu_index"]),
        register=int(params["staging_register"]),
        transposed=bool(params["transpose"]),
    )
    decoder.emit(step, step.value)


@rule(tpu_primitives.matmul_acc_lhs_p)
def _accumulate(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> None:
    known = jaxcompat.accumulator(eqn.params)
    if known is not None:
        _multiply(decoder, eqn, site, inputs[0], *known)
        return
    accumulator, value, *flat = inputs
    transforms = jax.tree.unflatten(eqn.params["acc_transforms_tree"], flat)
    at = place(decoder, accumulator, transforms)
    _multiply(decoder, eqn, site, value, _unit_of(eqn), at)


def _unit_of(eqn: Any) -> int:
    return int(eqn.invars[0].aval.memory_space.mxu_id)


def _multiply(
    decoder: Decoder, eqn: Any, site: ir.StepSite, value: Any, unit: int,
    target: ir.RefPlace | int | None,
) -> None:  # fmt: skip
    staged = eqn.params["load_staged_rhs"]
    step = ir.MatrixMultiply(
        site=site,
        value=decoder.reg(value),
        unit=unit,
        register=None if staged is None else int(staged),
        target=target,
    )
    decoder.emit(step, step.value, *_registers(target))


def _registers(target: ir.RefPlace | int | None) -> list[ir.Reg]:
    return registers(target) if isinstance(target, ir.RefPlace) else []


@rule(tpu_primitives.matmul_pop_p)
def _pop(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    known = jaxcompat.accumulator(eqn.params)
    if known is not None:
        return _popped(decoder, eqn, site, *known)
    accumulator, *flat = inputs
    transforms = jax.tree.unflatten(eqn.params["acc_transforms_tree"], flat)
    return _popped(decoder, eqn, site, _unit_of(eqn), place(decoder, accumulator, transforms))


def _popped(
    decoder: Decoder, eqn: Any, site: ir.StepSite, unit: int, target: ir.RefPlace | int | None
) -> list[ir.Reg]:
    aval = eqn.outvars[0].aval
    output = decoder.new()
    step = ir.MatrixPop(
        site=site,
        unit=unit,
        target=target,
        shape=tuple(aval.shape),
        dtype=np.dtype(aval.dtype),
        output=output,
    )
    decoder.emit(step, *_registers(target))
    return [output]


@rule(tpu_primitives.matmul_lhs_fifo_p)
def _enqueue(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> None:
    _multiply(decoder, eqn, site, inputs[0], int(eqn.params["mxu_index"]), None)


@rule(tpu_primitives.matmul_pop_fifo_p)
def _dequeue(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    return _popped(decoder, eqn, site, int(eqn.params["mxu_index"]), None)
