"""Decode operations on the registers of the matrix units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from pallas_debug.bridge import jaxcompat, normal_forms
from pallas_debug.bridge.jaxcompat import tpu_primitives
from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.accesses import place
from pallas_debug.bridge.programs.decode import Decoder, rule


@rule(tpu_primitives.matmul_push_rhs_p)
def _push(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    params = eqn.params
    step = ir.MatrixPush(
        site=site,
        value=decoder.reg(inputs[0]),
        unit=int(params["mxu_index"]),
        register=int(params["staging_register"]),
        transposed=bool(params["transpose"]),
    )
    return decoder.emit(step)


@rule(tpu_primitives.matmul_acc_lhs_p)
def _accumulate(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    if (known := jaxcompat.accumulator(eqn.params)) is not None:
        return _multiply(decoder, eqn, site, inputs[0], *known)
    accumulator, value, *transforms = inputs
    return _multiply(decoder, eqn, site, value, *_target(decoder, eqn, accumulator, transforms))


@rule(tpu_primitives.matmul_lhs_fifo_p)
def _enqueue(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    return _multiply(decoder, eqn, site, inputs[0], int(eqn.params["mxu_index"]), None)


def _target(
    decoder: Decoder, eqn: Any, accumulator: Any, transforms: Sequence[Any]
) -> tuple[int, ir.RefPlace]:
    """Matrix unit of an accumulator, and the part of it that an operation uses."""
    tree = jax.tree.unflatten(eqn.params["acc_transforms_tree"], transforms)
    unit = int(eqn.invars[0].aval.memory_space.mxu_id)
    return unit, place(decoder, normal_forms.at(accumulator, tree))


def _multiply(
    decoder: Decoder, eqn: Any, site: ir.StepSite, value: Any, unit: int,
    target: ir.RefPlace | int | None,
) -> Any:  # fmt: skip
    staged = eqn.params["load_staged_rhs"]
    step = ir.MatrixMultiply(
        site=site,
        value=decoder.reg(value),
        unit=unit,
        register=None if staged is None else int(staged),
        target=target,
    )
    return decoder.emit(step)


@rule(tpu_primitives.matmul_pop_p)
def _pop(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    if (known := jaxcompat.accumulator(eqn.params)) is not None:
        return _popped(decoder, eqn, site, *known)
    accumulator, *transforms = inputs
    return _popped(decoder, eqn, site, *_target(decoder, eqn, accumulator, transforms))


@rule(tpu_primitives.matmul_pop_fifo_p)
def _dequeue(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    return _popped(decoder, eqn, site, int(eqn.params["mxu_index"]), None)


def _popped(
    decoder: Decoder, eqn: Any, site: ir.StepSite, unit: int, target: ir.RefPlace | int | None
) -> Any:
    aval = eqn.outvars[0].aval
    step = ir.MatrixPop(
        site=site,
        unit=unit,
        target=target,
        shape=tuple(aval.shape),
        dtype=np.dtype(aval.dtype),
        output=decoder.new(),
    )
    return decoder.emit(step)
