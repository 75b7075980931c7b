"""Grid, blocks and index map results of a captured kernel, as plain data and numpy arrays."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from pallas_debug.bridge import jaxcompat
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.jaxcompat import dtypes, jax_core
from pallas_debug.bridge.jaxprs import nested
from pallas_debug.bridge.jaxprs.params import (
    block_entry,
    buffer_count,
    gpu_backend,
    index_map_line,
    jaxprs_of,
    parallel_axes,
    revisits,
)
from pallas_debug.bridge.walk.events import Event, Walked
from pallas_debug.bridge.walk.walker import MAX_ELEMENTS, UNKNOWN, Exhausted, Value, Walker
from pallas_debug.model import Operand, SourceLine
from pallas_debug.profile.blocks import BlockIndex


@dataclass(frozen=True, kw_only=True)
class Block(Operand):
    """An operand with blocks.

    Attributes:
      dims: without values of the index map; `kind` may also be another of jax's, in lower case, and
        `bound` is -1 for a size that is known only at run time.
      position: among the operands with blocks.
      source: line of the index map; None for jax's own.
      buffers: number of buffers requested by the kernel; None if left to Pallas.
      revisits: whether the kernel declares that an output block may be revisited.
      index_dtypes: dtypes of the results of the index map.
      passed: for each result, the dimension of the grid whose program id it is; None for others.
    """

    position: int
    dims: tuple[BlockIndex, ...]
    source: SourceLine | None = None
    buffers: int | None = None
    revisits: bool
    index_dtypes: tuple[str, ...]
    passed: tuple[int | None, ...]
    is_whole: bool

    @property
    def sizes(self) -> tuple[int, ...]:
        """Size of a block along each dimension of the array."""
        return tuple(dim.size for dim in self.dims)

    @property
    def bits(self) -> int:
        """Size of one element in memory."""
        return bits_of(self.dtype)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Grid of a captured kernel, with its operands.

    Attributes:
      sizes: sizes of all dimensions, including those added by `vmap`.
      batch: positions of the dimensions added by `vmap`.
      parallel: for each dimension, whether its grid points are unordered.
      aliased: positions of outputs that start with an input's values.
    """

    sizes: tuple[int, ...]
    batch: tuple[int, ...]
    parallel: tuple[bool, ...]
    blocks: tuple[Block, ...]
    tables: tuple[Operand, ...]
    scratch: tuple[Operand, ...]
    aliased: frozenset[int]
    num_inputs: int
    vmem_limit: int | None

    @property
    def points(self) -> int:
        return math.prod(self.sizes)

    @property
    def outputs(self) -> tuple[Block, ...]:
        return self.blocks[self.num_inputs :]

    def number(self, axis: int) -> int:
        """Number of a dimension in the kernel's code, which does not count those of `vmap`."""
        return axis - sum(added < axis for added in self.batch)

    def numbers(self, axes: Iterable[int]) -> tuple[int, ...]:
        """Numbers of dimensions in the kernel's code; none for those of `vmap`."""
        return tuple(self.number(axis) for axis in axes if axis not in self.batch)


class NotReadable(Exception):
    """The grid cannot be analysed statically; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Indices:
    """Results of one index map.

    Attributes:
      dims: for each dimension of the block, an array that broadcasts against the grid; None if
        unknown.
      reason: why it is unknown, as the end of a sentence.
      reads: reads of scalar prefetch by the index map.
      from_tables: dimensions of the block that depend on these.
    """

    dims: tuple[np.ndarray, ...] | None
    reason: str = ""
    reads: tuple[Event, ...] = ()
    from_tables: frozenset[int] = frozenset()


UNSIZED = "its grid has a dimension whose size is known only at run time"


def is_unsized(captured: Capture) -> bool:
    """Return whether the size of a kernel's grid is known only at run time."""
    return None in captured.kernel.grid


def with_grid(captured: Capture, sizes: Sequence[int]) -> Capture:
    """Set the sizes of a grid that are known only at run time, in their order."""
    given = iter(sizes)
    mapping = captured.params["grid_mapping"]
    grid = tuple(n if isinstance(n, int) else max(int(next(given)), 0) for n in mapping.grid)
    params = {**captured.params, "grid_mapping": mapping.replace(grid=grid)}
    return replace(captured, params=params, kernel=replace(captured.kernel, grid=grid))


def grid(captured: Capture) -> Grid:
    """Describe the grid of a captured kernel.

    Raises:
      NotReadable: the kernel is for a GPU or runs over a mesh of cores, or its grid size is known
        only at run time.
    """
    params, kernel = captured.params, captured.kernel
    if backend := gpu_backend(params):
        raise NotReadable(f"it is a kernel for a GPU ({backend})")
    if "grid_mapping" not in params:
        raise NotReadable("it is a kernel over a mesh of cores, without a grid and blocks")
    if is_unsized(captured):
        raise NotReadable(UNSIZED)
    blocked = [operand for operand in kernel.operands if operand.kind in ("input", "output")]
    mapping = params["grid_mapping"]
    mapped = enumerate(zip(blocked, mapping.block_mappings, strict=True))
    return Grid(
        sizes=tuple(size or 0 for size in kernel.grid),
        batch=tuple(mapping.vmapped_dims),
        parallel=parallel_axes(params),
        blocks=tuple(_block(operand, i, block) for i, (operand, block) in mapped),
        tables=kernel.of_kind("scalar_prefetch"),
        scratch=kernel.of_kind("scratch"),
        aliased=frozenset(output for _, output in kernel.aliases),
        num_inputs=len(kernel.of_kind("input")),
        vmem_limit=getattr(params.get("compiler_params"), "vmem_limit_bytes", None),
    )


def program_ids(sizes: Sequence[int]) -> list[np.ndarray]:
    """Program ids: one array per grid dimension, with size 1 along all other dimensions.

    Raises:
      Exhausted: a dimension has too many steps for an array of them.
    """
    if max(sizes, default=0) > MAX_ELEMENTS:
        raise Exhausted(f"its grid has {max(sizes):,} steps along a dimension")
    return [
        np.arange(size, dtype=np.int32).reshape([-1 if i == d else 1 for i in range(len(sizes))])
        for d, size in enumerate(sizes)
    ]


def indices(
    captured: Capture,
    position: int,
    tables: Mapping[int, np.ndarray],
    deadline: float,
) -> Indices:
    """Evaluate the index map of the operand at a position, among those with blocks.

    Args:
      tables: known scalar prefetch values, by position.
      deadline: `time.monotonic` value at which to stop.
    """
    mapping = captured.params["grid_mapping"]
    block = mapping.block_mappings[position]
    inner, _ = jaxcompat.opened(block.index_map_jaxpr)
    try:
        ids = program_ids(mapping.grid)
    except Exhausted as error:
        return Indices(dims=None, reason=str(error))
    walker = Walker(ids=ids, sizes=mapping.grid, rank=len(ids), tables=tables, deadline=deadline)
    names = nested.arg_names(captured.params["jaxpr"])
    args: list[Value] = list(ids)
    for i, variable in enumerate(inner.invars[len(ids) :]):
        args.append(walker.buffer(variable.aval, name=names[i], kind="scalar_prefetch", position=i))
    try:
        outputs = walker.results(block.index_map_jaxpr, args)
    except Exhausted as error:
        return Indices(dims=None, reason=str(error))
    except Exception as error:  # noqa: BLE001 - the user's function fails here
        return Indices(dims=None, reason=f"it raises {type(error).__name__}: {error}")
    reads = tuple(walker.events)
    if len(outputs) != len(block.block_shape):
        return Indices(dims=None, reason="it returns slices", reads=reads)
    known = [value for value in outputs if isinstance(value, np.ndarray)]
    if len(known) == len(outputs):
        tables_of = nested.results_of_refs(inner)
        return Indices(dims=tuple(known), reads=reads, from_tables=tables_of)
    return Indices(dims=None, reason=_why_unknown(walker, inner, names, tables), reads=reads)


def _why_unknown(
    walker: Walker, inner: Any, names: Sequence[str], tables: Mapping[int, np.ndarray]
) -> str:
    read = {e.view.buffer.position for e in walker.events}
    missing = sorted(p for p in read if p is not None and p not in tables)
    if missing:
        return f"it reads {', '.join(names[i] for i in missing)}, whose values are unknown"
    used = dict.fromkeys(eqn.primitive.name for eqn in inner.eqns)
    return f"it uses values that are not computed here, among {', '.join(used) or 'its arguments'}"


def walk(
    captured: Capture, grid: Grid, tables: Mapping[int, np.ndarray], deadline: float
) -> Walked:
    """Walk the body of a kernel over the whole grid."""
    sizes = grid.sizes
    jaxpr = jaxprs_of(captured.params)[0]
    kinds = [o.kind for o in captured.kernel.operands if o.kind != "dynamic_grid"]
    try:
        ids = program_ids(sizes)
    except Exhausted as error:
        return Walked(events=(), incomplete=str(error))
    seen = [i for i in range(len(ids)) if i not in grid.batch]
    known = dict(tables)
    while True:
        walker = Walker(
            ids=[ids[i] for i in seen],
            sizes=[sizes[i] for i in seen],
            rank=len(ids),
            tables=known,
            deadline=deadline,
        )
        incomplete = None
        try:
            walker.results(jaxpr, _refs(walker, jaxpr, kinds))
        except Exhausted as error:
            incomplete = str(error)
        except Exception as error:  # noqa: BLE001 - report a bug of ours, and do not blame the user
            incomplete = f"pallas-debug failed on it, {type(error).__name__}: {error}"
        # The values of a table change once the kernel writes to it.
        written = walker.stale & known.keys()
        if not written:
            return Walked(events=tuple(walker.events), incomplete=incomplete)
        known = {i: table for i, table in known.items() if i not in written}


def _refs(walker: Walker, jaxpr: Any, kinds: Sequence[str]) -> list[Value]:
    return [
        walker.buffer(v.aval, name=name, kind=kind, position=i) if nested.is_ref(v) else UNKNOWN
        for i, (v, name, kind) in enumerate(
            zip(jaxpr.invars, nested.arg_names(jaxpr), kinds, strict=True)
        )
    ]


def _block(operand: Operand, position: int, block: Any) -> Block:
    inner, _ = jaxcompat.opened(block.index_map_jaxpr)
    ids = {variable: axis for axis, variable in enumerate(inner.invars)}
    return Block(
        **vars(operand),
        position=position,
        dims=tuple(
            BlockIndex(**block_entry(entry)._asdict(), bound=bound)
            for entry, bound in zip(block.block_shape, operand.shape, strict=True)
        ),
        source=index_map_line(block),
        buffers=buffer_count(block.pipeline_mode),
        revisits=revisits(block),
        index_dtypes=tuple(str(v.aval.dtype) for v in inner.outvars),
        passed=tuple(
            None if isinstance(v, jax_core.Literal) else ids.get(v) for v in inner.outvars
        ),
        is_whole=bool(block.has_trivial_window()),
    )


def bits_of(dtype: str) -> int:
    """Size of an element in bits: 32 for a bool, 0 for a semaphore, which takes no VMEM."""
    if dtype == "bool":
        return 32
    try:
        kind = jnp.dtype(dtype)
    except TypeError:
        return 0
    return int(dtypes.itemsize_bits(kind))
