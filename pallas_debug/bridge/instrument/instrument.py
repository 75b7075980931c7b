"""Insertion of checks into a kernel: the same `pallas_call` with an additional output for failures.

The output is plain data in scalar memory, so the checks need no callback, and work compiled for a
TPU as well as in an interpreter.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.bridge.instrument import checking
from pallas_debug.bridge.instrument.recording import Recorder
from pallas_debug.bridge.instrument.sites import RecordLayout
from pallas_debug.bridge.jaxcompat import jax_core
from pallas_debug.bridge.jaxprs import mechanisms, nested
from pallas_debug.bridge.jaxprs.params import gpu_backend, parallel_axes
from pallas_debug.bridge.normal_forms import InnerJaxpr

MAX_SLICES = 1 << 18
"""Maximum number of rows of the checks output, of 512 bytes each."""


@dataclass(frozen=True, kw_only=True)
class Instrumented:
    """A kernel with checks added.

    Attributes:
      params: parameters of the primitive; its last output is `int32[layout.slices, 1,
        layout.words]`.
      layout: its sites are empty if checks were only removed.
      not_entered: primitives whose inner code was not checked.
    """

    params: dict[str, Any]
    layout: RecordLayout
    not_entered: tuple[str, ...]

    def bind(self, primitive: jax_core.Primitive, args: Sequence[Any]) -> list[Any]:
        """Call the kernel; the last output is the checks'."""
        outputs = list(primitive.bind(*args, **self.params))
        bounds = args[: self.params["grid_mapping"].num_dynamic_grid_bounds]
        if not bounds:
            return outputs
        # An empty grid writes nothing and leaves the output uninitialised.
        is_run = functools.reduce(lambda a, b: a & b, [bound > 0 for bound in bounds])
        return [*outputs[:-1], jnp.where(is_run, outputs[-1], np.int32(0))]


class CannotInstrument(Exception):
    """The kernel cannot be instrumented; the message gives the reason."""


def instrument(params: dict[str, Any], checks: Sequence[str]) -> Instrumented | None:
    """Add checks to the parameters of a `pallas_call`; return None if there is nothing to check.

    Raises:
      CannotInstrument: this kind of kernel cannot be rewritten.
    """
    if "grid_mapping" not in params:
        raise CannotInstrument(
            "it is a kernel over a mesh (`pl.kernel`, `core_map`), which these checks do not "
            "support"
        )
    if reason := mechanisms.refusal(params):
        raise CannotInstrument(reason)
    mapping = params["grid_mapping"]
    if 0 in [size for size in mapping.grid if isinstance(size, int)]:
        return None  # an empty grid: it never runs
    prefix = _prefix(params)
    room = RecordLayout(
        grid_rank=len(mapping.grid) - len(mapping.vmapped_dims),
        batch=tuple(mapping.grid[d] for d in mapping.vmapped_dims),
        slices=math.prod(mapping.grid[:prefix]),
    )
    if room.slices > MAX_SLICES:
        raise CannotInstrument(f"its grid has {room.slices} parallel slices; use fewer")
    block = _block_mapping(mapping, (room.slices, 1, room.words), prefix)
    jaxpr, checker = _with_checks(params, checks, block, prefix)
    if not checker.sites and not checker.left_out:
        return None
    return Instrumented(
        params={
            **params,
            "jaxpr": jaxpr,
            "out_avals": (*params["out_avals"], block.array_aval),
            "grid_mapping": mapping.replace(
                block_mappings=(*mapping.block_mappings, block),
                num_outputs=mapping.num_outputs + 1,
            ),
        },
        layout=replace(room, sites=tuple(checker.sites)),
        not_entered=tuple(dict.fromkeys(checker.not_entered)),
    )


def _with_checks(
    params: dict[str, Any], checks: Sequence[str], block: Any, prefix: int
) -> tuple[Any, checking.Checker]:
    """Retrace a kernel with checks, and with a ref for them after its outputs."""
    jaxpr, mapping = params["jaxpr"], params["grid_mapping"]
    position = mapping.num_index_operands + len(mapping.block_mappings)
    avals, names = [v.aval for v in jaxpr.invars], nested.arg_names(jaxpr)
    avals.insert(position, block.ref_aval)
    names.insert(position, "checks_ref")
    sequential = max(prefix - len(mapping.vmapped_dims), 0)
    checkers = []

    def body(*all_refs: Any) -> list[Any]:
        refs, point = list(all_refs), _grid_point(mapping)
        recorder = Recorder(refs.pop(position), point)
        _at_first(recorder.clear, point[sequential:])
        checker = checking.Checker(
            checks,
            dict(zip(map(id, refs), nested.arg_names(jaxpr), strict=False)),
            recorder,
            default_space="gmem" if gpu_backend(params) else "vmem",
        )
        checker.blocks(mapping, point, refs[mapping.slice_index_ops])
        checker.replay(InnerJaxpr(jaxpr, ()), refs)
        checkers.append(checker)
        return []

    debug_info = jaxpr.debug_info._replace(arg_names=tuple(names))
    with mapping.trace_env():
        traced, consts = checking.trace(body, avals, debug_info)
    if consts:
        raise CannotInstrument("its checks would need to capture constants")
    return traced, checkers[-1]


def _prefix(params: dict[str, Any]) -> int:
    """Number of leading grid dimensions whose indices each get a row.

    All dimensions up to the last parallel one, since cores may divide those among them and must not
    share a row; and all that `vmap` added, since a kernel cannot read their indices.
    """
    mapping = params["grid_mapping"]
    batch = len(mapping.vmapped_dims)
    wanted = max([batch, *(i + 1 for i, found in enumerate(parallel_axes(params)) if found)])
    sizes = mapping.grid[:wanted]
    if any(not isinstance(size, int) for size in sizes):
        raise CannotInstrument(
            "a parallel dimension of its grid has a size that is known only at run time"
        )
    return wanted


def _block_mapping(mapping: Any, shape: tuple[int, int, int], prefix: int) -> Any:
    """Map each slice of the grid to a row of the checks output; `shape` is that of the output."""

    def index_map(*args: Any) -> tuple[Any, ...]:
        row: Any = np.int32(0)
        for size, index in zip(mapping.grid[:prefix], args[:prefix], strict=True):
            row = row * np.int32(size) + index
        return row, np.int32(0), np.int32(0)

    spec = pl.BlockSpec((1, 1, shape[2]), index_map, memory_space=pltpu.SMEM)
    return spec.to_block_mapping(
        "outputs[checks]",
        jax_core.ShapedArray(shape, jnp.dtype("int32")),
        index_map_avals=mapping.index_map_avals,
        index_map_tree=mapping.index_map_tree,
        grid=mapping.grid,
        vmapped_dims=mapping.vmapped_dims,
    )


def _grid_point(mapping: Any) -> list[Any]:
    """The program ids. HLO interpret mode has no rule for them inside a loop or branch."""
    return [pl.program_id(d) for d in range(len(mapping.grid) - len(mapping.vmapped_dims))]


def _at_first(action: Callable[[], None], sequential: Sequence[Any]) -> None:
    """Run `action` at the first step of each slice of the grid."""
    if not sequential:
        action()
        return
    first = sequential[0] == 0
    for index in sequential[1:]:
        first = first & (index == 0)

    def taken() -> tuple[()]:
        action()
        return ()

    lax.cond(first, taken, lambda: ())
