"""Insertion of checks into a kernel: the same `pallas_call` with an additional output for failures.

The output is plain data in scalar memory, so the checks need no callback and work in every mode:
HLO and TPU interpret mode, and compiled for a TPU.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src import core as jax_core
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.bridge.instrument import checking, conditions, primitives, printing
from pallas_debug.bridge.instrument.recording import Recorder, Tripwire
from pallas_debug.bridge.instrument.sites import RecordLayout, RefOperand
from pallas_debug.bridge.jaxprs import nested, rewrite
from pallas_debug.bridge.jaxprs.index_lines import IndexLines
from pallas_debug.bridge.jaxprs.params import gpu_backend

MAX_BYTES = 256 << 20
"""Maximum size in bytes of the checks output."""

BYTES_PER_SITE = 64


@dataclass(frozen=True, kw_only=True)
class Instrumented:
    """A kernel with checks or prints added.

    Attributes:
      params: parameters of the primitive; with checks, its last output is
        `int32[layout.slices, 1, layout.words]`, or `int32[layout.slices, 1, 1]` with `trips`.
      layout: None without checks.
      trips: whether it only records that something may have failed (`recording.Tripwire`).
      not_entered: primitives whose inner code was not checked.
    """

    params: dict[str, Any]
    layout: RecordLayout | None
    trips: bool = False
    not_entered: tuple[str, ...]

    def bind(self, primitive: jax_core.Primitive, args: Sequence[Any]) -> list[Any]:
        """Call the kernel; with checks, the last output is the checks'."""
        outputs = list(primitive.bind(*args, **self.params))
        bounds = args[: self.params["grid_mapping"].num_dynamic_grid_bounds]
        if self.layout is None or not bounds:
            return outputs
        # An empty grid writes nothing and leaves the output uninitialised.
        is_run = functools.reduce(lambda a, b: a & b, [bound > 0 for bound in bounds])
        return [*outputs[:-1], jnp.where(is_run, outputs[-1], np.int32(0))]


class CannotInstrument(Exception):
    """The kernel cannot be instrumented; the message gives the reason."""


def instrument(
    params: dict[str, Any],
    checks: Sequence[str],
    printed: printing.Printed | None = None,
    *,
    trips: bool = False,
    fills: bool = False,
) -> Instrumented | None:
    """Add checks to a kernel, and source locations to its prints.

    Returns None if it contains neither.

    Args:
      params: parameters of a `pallas_call` equation.
      checks: names, as listed in `defaults.CHECKS`.
      printed: receives the kernel's prints; None leaves them unchanged.
      trips: whether to record only that something may have failed; for HLO interpret mode.
      fills: whether to also look for integers that may be unwritten memory, which only a second run
        with another fill value confirms; implied by `trips`.

    Raises:
      CannotInstrument: this kind of kernel cannot be rewritten.
    """
    if "grid_mapping" not in params:
        raise CannotInstrument(
            "it is a kernel over a mesh (`pl.kernel`, `core_map`), which these checks do not "
            "support"
        )
    mapping = params["grid_mapping"]
    if 0 in [size for size in mapping.grid if isinstance(size, int)]:
        return None  # an empty grid: it never runs
    capacity = primitives.capacity(params["jaxpr"], checks) if checks else 0
    capacity += sum(len(block.block_shape) for block in mapping.block_mappings) if checks else 0
    made = _Rewriting(params, tuple(checks), printed, trips=trips, fills=fills or trips)
    if capacity == 0:
        jaxpr = made.with_prints() if printed else None
        if not made.changed:
            return None
        return Instrumented(params={**params, "jaxpr": jaxpr}, layout=None, not_entered=())
    prefix = _prefix(params, capacity)
    room = _layout(mapping, prefix, capacity)
    block = _block_mapping(mapping, (room.slices, 1, 1 if trips else room.words), prefix)
    jaxpr = made.with_checks(room, block, prefix)
    if len(made.sites) > capacity:
        raise CannotInstrument(f"it has {len(made.sites)} checks, but only {capacity} fit")
    if not made.sites and not made.changed:
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
        layout=replace(room, sites=made.sites, rows=made.rows),
        trips=trips,
        not_entered=made.not_entered,
    )


def array_names(params: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Names of the kernel's inputs, and of its outputs without the checks output."""
    mapping = params["grid_mapping"]
    names = nested.arg_names(params["jaxpr"])[mapping.num_index_operands :]
    outputs = names[mapping.num_inputs : mapping.num_inputs + mapping.num_outputs]
    return names[: mapping.num_inputs], outputs[:-1]


def uncovered(params: dict[str, Any]) -> Mapping[str, bool]:
    """Outputs whose last blocks are not written, because the grid is too small.

    Known only if an index map returns a program id unchanged.

    Returns:
      For each such output, whether only a partial block is missing, as with `size // block` steps.
    """
    mapping = params["grid_mapping"]
    found: dict[str, bool] = {}
    blocks = mapping.block_mappings[mapping.num_inputs :]
    for name, block in zip(array_names(params)[1], blocks, strict=False):
        inner, _ = nested.opened(block.index_map_jaxpr)
        for out, entry, bound in zip(
            inner.outvars, block.block_shape, block.array_aval.shape, strict=False
        ):
            size = conditions.block_size(entry) or 1
            sizes = dict(zip(inner.invars, mapping.grid, strict=False))
            steps = sizes.get(out) if not hasattr(out, "val") else None
            if isinstance(steps, int) and steps * size < bound:
                found[name] = found.get(name, True) and bound - steps * size < size
    return found


class _Rewriting:
    """Retraces one kernel with additions; its public attributes then describe them."""

    def __init__(
        self,
        params: dict[str, Any],
        checks: tuple[str, ...],
        printed: printing.Printed | None,
        *,
        trips: bool,
        fills: bool,
    ) -> None:
        self._fills = fills
        self._jaxpr = params["jaxpr"]
        self._mapping = params["grid_mapping"]
        self._checks = checks
        self._printed = printed
        self._trips = trips
        self._name = str(params.get("name") or self._jaxpr.debug_info.func_name)
        self._vectors = bool(params.get("interpret"))
        self._default_space = "gmem" if gpu_backend(params) else "vmem"
        self.sites: tuple[Any, ...] = ()
        self.rows: tuple[int, ...] = ()
        self.changed = False
        self.not_entered: tuple[str, ...] = ()

    def with_prints(self) -> Any:
        avals = [v.aval for v in self._jaxpr.invars]
        return self._traced(avals, self._jaxpr.debug_info, lambda refs, point: (refs, None))

    def with_checks(self, layout: RecordLayout, block: Any, prefix: int) -> Any:
        """Return the kernel's jaxpr with the checks, and with a ref for them after its outputs."""
        position = self._mapping.num_index_operands + len(self._mapping.block_mappings)
        avals, names = [v.aval for v in self._jaxpr.invars], nested.arg_names(self._jaxpr)
        avals.insert(position, block.ref_aval)
        names.insert(position, "checks_ref")
        sequential = max(prefix - len(self._mapping.vmapped_dims), 0)

        def split(refs: list[Any], point: Sequence[Any]) -> tuple[list[Any], Recorder | Tripwire]:
            words = refs.pop(position)
            recorder = (
                Tripwire(words)
                if self._trips
                else Recorder(words, layout, point, vectors=self._vectors)
            )
            _at_first(recorder.clear, point[sequential:])
            return refs, recorder

        debug_info = self._jaxpr.debug_info._replace(arg_names=tuple(names))
        return self._traced(avals, debug_info, split)

    def _traced(
        self,
        avals: Sequence[Any],
        debug_info: Any,
        split: Callable[[list[Any], Sequence[Any]], tuple[list[Any], Recorder | Tripwire | None]],
    ) -> Any:
        mapping = self._mapping

        def body(*all_refs: Any) -> list[Any]:
            point = _grid_point(mapping)
            refs, recorder = split(list(all_refs), point)
            operands = _operands(self._jaxpr, mapping, refs)
            checker = checking.Checker(
                self._checks if recorder else (),
                operands,
                recorder,
                fills=self._fills,
                index_lines=IndexLines([self._jaxpr]),
                default_space=self._default_space,
            )
            printer = printing.Printer(self._name, point, self._printed) if self._printed else None
            checker.blocks(mapping, point, refs[mapping.slice_index_ops])
            visitor = rewrite.Several(printer, checker) if printer else checker
            rewrite.replay(self._jaxpr, refs, visitor)
            self.sites = checker.finished()
            self.rows = _rows(recorder, len(self.sites))
            self.changed = bool(checker.left_out or (printer and printer.count))
            self.not_entered = tuple(dict.fromkeys(checker.not_entered))
            return []

        with mapping.trace_env():
            traced, consts = rewrite.trace(body, avals, debug_info)
        if consts:
            raise CannotInstrument("its checks would need to capture constants")
        return traced


def _rows(recorder: Recorder | Tripwire | None, number: int) -> tuple[int, ...]:
    """Number of each site's record; those of sites that cannot fail come last, and are empty."""
    known = recorder.rows if isinstance(recorder, Recorder) else {}
    free = itertools.count(len(known))
    return tuple(known[site] if site in known else next(free) for site in range(number))


def _layout(mapping: Any, prefix: int, capacity: int) -> RecordLayout:
    return RecordLayout(
        capacity=capacity,
        grid_rank=len(mapping.grid) - len(mapping.vmapped_dims),
        batch=tuple(mapping.grid[d] for d in mapping.vmapped_dims),
        slices=math.prod(mapping.grid[:prefix]),
    )


def _prefix(params: dict[str, Any], num_sites: int) -> int:
    """Number of leading grid dimensions whose indices each get a row.

    All dimensions up to the last parallel one, since cores may divide those among them and must not
    share a row; and all that `vmap` added, since a kernel cannot read their indices.
    """
    mapping = params["grid_mapping"]
    semantics = _semantics(params)
    batch = len(mapping.vmapped_dims)
    is_parallel = [s == "parallel" for s in semantics]
    # The semantics cover only the author's dimensions, which follow those of the batch.
    missing = len(mapping.grid) - len(is_parallel)
    is_parallel = [False] * missing + is_parallel if semantics else [False] * len(mapping.grid)
    wanted = max([batch, *(i + 1 for i, parallel in enumerate(is_parallel) if parallel)])
    sizes = mapping.grid[:wanted]
    if any(not isinstance(size, int) for size in sizes):
        raise CannotInstrument(
            "a parallel dimension of its grid has a size that is known only at run time"
        )
    slices = math.prod(sizes)
    if slices * num_sites * BYTES_PER_SITE > MAX_BYTES:
        raise CannotInstrument(
            f"its grid has {slices} parallel slices, too many to keep {num_sites} checks for "
            "each; use fewer"
        )
    return wanted


def _semantics(params: dict[str, Any]) -> tuple[str, ...]:
    given = getattr(params.get("compiler_params"), "dimension_semantics", None) or ()
    return tuple(str(getattr(s, "value", s)).lower().rpartition(".")[2] for s in given)


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


def _operands(jaxpr: Any, mapping: Any, refs: Sequence[Any]) -> dict[int, RefOperand]:
    kinds = ["scalar_prefetch"] * mapping.num_index_operands
    kinds += ["input"] * mapping.num_inputs + ["output"] * mapping.num_outputs
    kinds += ["scratch"] * (len(refs) - len(kinds))
    blocks = [False] * mapping.num_index_operands
    blocks += [any(map(_pads_before, block.block_shape)) for block in mapping.block_mappings]
    blocks += [False] * (len(refs) - len(blocks))
    return {
        id(ref): RefOperand(name=name, kind=kind, begins_before=begins)
        for ref, name, kind, begins in zip(
            refs, nested.arg_names(jaxpr), kinds, blocks, strict=False
        )
    }


def _pads_before(entry: Any) -> bool:
    return bool(getattr(entry, "padding", (0, 0))[0])
