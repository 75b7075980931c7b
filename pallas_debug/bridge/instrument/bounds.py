"""Checks of indices: slices, copies and gathers, and blocks returned by index maps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from pallas_debug.bridge import jaxcompat
from pallas_debug.bridge.instrument import conditions
from pallas_debug.bridge.instrument.primitives import ACCESSES
from pallas_debug.bridge.instrument.recording import Pending, Recorder
from pallas_debug.bridge.instrument.sites import MAX_LOOPS, RefOperand, Site
from pallas_debug.bridge.jaxcompat import indexing, jax_core
from pallas_debug.bridge.jaxprs import lines, rewrite
from pallas_debug.bridge.jaxprs.index_lines import IndexLines


class BlockCheck(NamedTuple):
    """A block index that may be out of bounds."""

    site: Site
    failed: Any
    index: Any


def block_checks(
    mapping: Any,
    operands: Sequence[Any],
    grid_point: Sequence[Any],
    prefetched: Sequence[Any],
) -> Iterator[BlockCheck]:
    """Check that the blocks of all operands begin within their arrays.

    The last block of an array may reach past its end; what is read there is padding.

    Args:
      mapping: jax's `GridMapping`.
      operands: name and kind of each operand with blocks.
      prefetched: refs of the scalar-prefetch operands.
    """
    batch = [np.int32(0)] * len(mapping.vmapped_dims)  # jax maps these blocks itself
    for operand, block in zip(operands, mapping.block_mappings, strict=False):
        inner, consts = jaxcompat.opened(block.index_map_jaxpr)
        indices = jax_core.eval_jaxpr(inner, consts, *batch, *grid_point, *prefetched)
        shape = tuple(conditions.block_size(b) for b in block.block_shape)
        for dim, (index, entry, bound) in enumerate(
            zip(indices, block.block_shape, block.array_aval.shape, strict=False)
        ):
            size = conditions.block_size(entry)
            is_element = type(entry).__name__ == "Element"
            number = bound - 1 if is_element or size is None else (bound - 1) // size
            if _stays(index, number, inner, dim, mapping):
                continue
            site = Site(
                check="index",
                operation="block",
                source=lines.of_function(block.index_map_jaxpr.debug_info),
                operand=operand.name,
                details={
                    "dim": dim,
                    "size": size,
                    "bound": bound,
                    "blocks": number + 1,
                    "element": is_element,
                    "kind": operand.kind,
                    "block": shape,
                    "shape": tuple(block.array_aval.shape),
                    "dtype": str(block.array_aval.dtype),
                },
            )
            failed = (index < 0) | (index > number)
            yield BlockCheck(site, failed, index)


def _stays(index: Any, last: int, inner: Any, dim: int, mapping: Any) -> bool:
    """Return whether a block index is statically known to be within the array."""
    if not isinstance(index, jax_core.Tracer):
        return 0 <= int(index) <= last
    out = inner.outvars[dim]
    for size, variable in zip(mapping.grid, inner.invars, strict=False):
        if out is variable and isinstance(size, int):
            return size - 1 <= last
    return False


class BoundsChecker(rewrite.Visitor):
    """Visitor that collects sites, and checks indices.

    Args:
      checks: names, as listed in `defaults.CHECKS`.
      operands: the kernel's refs, by the `id` of their tracers.
      recorder: records failures.
      is_interpreted: whether an interpreter runs the kernel, which has every operation.
      index_lines: of the kernel.
      default_space: memory of operands without a memory space.
    """

    def __init__(
        self,
        checks: Sequence[str],
        operands: dict[int, RefOperand],
        recorder: Recorder,
        *,
        is_interpreted: bool,
        index_lines: IndexLines,
        default_space: str = "vmem",
    ) -> None:
        self._index_lines = index_lines
        self._default_space = default_space
        self._is_interpreted = is_interpreted
        self._checks = frozenset(checks)
        self._operands = operands
        self._recorder = recorder
        self._kept_alive: list[Any] = []
        self._regions: list[list[Pending]] = []  # regions being visited, innermost last
        self._place = rewrite.ProgramPoint()
        self.sites: list[Site] = []
        self.not_entered: list[str] = []
        self.left_out = 0

    def entering(self, place: rewrite.ProgramPoint) -> None:
        self._regions.append([])

    def leaving(self, place: rewrite.ProgramPoint) -> None:
        pending = self._regions.pop()
        if pending:
            self._recorder.write(pending, [loop.iteration for loop in place.loops[-MAX_LOOPS:]])

    def scoped(self, refs: Sequence[Any], names: Sequence[str]) -> None:
        for ref, name in zip(refs, names, strict=True):
            self._operands[id(ref)] = RefOperand(name=name, kind="scratch")
            self._kept_alive.append(ref)

    def blocks(self, mapping: Any, grid_point: Sequence[Any], prefetched: Sequence[Any]) -> None:
        """Check that each operand's block at the current grid point begins within its array."""
        if "index" not in self._checks:
            return
        self.entering(self._place)
        operands = list(self._operands.values())[mapping.num_index_operands :]
        for found in block_checks(mapping, operands, grid_point, prefetched):
            index = [found.index]
            self._add_index(found.site, found.failed, index.copy)
        self.leaving(self._place)

    def _add_index(self, site: Site, failed: Any, index: Callable[[], Sequence[Any]]) -> None:
        self._add(replace(site, values=(("index", "int32"),)), failed, values=index)

    def _access(self, eqn: Any, inputs: Sequence[Any]) -> None:
        if "index" not in self._checks:
            return
        what, first = ACCESSES[eqn.primitive]
        mask = None
        if first is None:
            ref, transforms, *rest = jax.tree.unflatten(eqn.params["args_tree"], inputs)
            mask = rest[0 if what == "read" else 1]
        else:
            ref = inputs[0]
            transforms = jax.tree.unflatten(eqn.params["tree"], inputs[first:])
        if mask is None or self._is_interpreted:  # a core has no operations to apply every mask
            self._indices(eqn, ref, transforms, what, mask)

    def _copy(self, eqn: Any, inputs: Sequence[Any]) -> None:
        source, destination, *_ = jax.tree.unflatten(eqn.params["tree"], inputs)
        if "index" not in self._checks:
            return
        for ref, what in ((source, "read"), (destination, "write")):
            if conditions.is_transformed(ref):
                self._indices(eqn, ref.ref, ref.transforms, what)

    def _indices(
        self, eqn: Any, ref: Any, transforms: Sequence[Any], what: str, mask: Any = None
    ) -> None:
        """Check the indices of an access; elements for which the mask is false are not accessed."""
        known = self._operands.get(id(ref))
        aval = jax_core.typeof(ref)
        view = ""
        for transform in transforms or ():
            if not isinstance(transform, indexing.NDIndexer):
                continue
            outer, view = view, f"{view}.at[{', '.join(conditions.dims(transform))}]"
            for dim, (index, bound) in enumerate(
                zip(transform.indices, transform.shape, strict=True)
            ):
                is_slice = isinstance(index, indexing.Slice)
                start = index.start if is_slice else index
                if not isinstance(start, jax_core.Tracer) or not isinstance(bound, int):
                    continue
                size = index.size if is_slice else 1
                stride = index.stride if is_slice else 1
                if not isinstance(size, int) or not isinstance(stride, int):
                    continue
                last = bound - 1 - (size - 1) * stride
                failed = conditions.is_outside(start, last)
                if mask is not None:
                    if transform is not transforms[-1]:
                        continue  # a slice of which the mask selects elements
                    failed = conditions.reaches_outside(transform, dim, mask)
                source = lines.source_at(eqn, self._place)
                self._add_index(
                    Site(
                        check="index",
                        operation=what,
                        source=source,
                        operand=known.name if known else None,
                        details={
                            "dim": dim,
                            "size": size if is_slice else None,
                            "bound": bound,
                            "dims": conditions.dims(transform),
                            "view": outer,
                            "stride": stride,
                            "shape": tuple(transform.shape),
                            "dtype": str(aval.dtype),
                            "space": conditions.space(aval, self._default_space),
                            "computed": self._index_lines.of(source, dim),
                            "masked": mask is not None,
                        },
                    ),
                    failed,
                    functools.partial(conditions.first_outside, start, last),
                )

    def _dynamic_slice(self, eqn: Any, inputs: Sequence[Any]) -> None:
        operand, *starts = inputs
        sizes = eqn.params["slice_sizes"]
        for dim, (start, size) in enumerate(zip(starts[: operand.ndim], sizes, strict=True)):
            self._slice(eqn, operand, dim, start, size)

    def _gather(self, eqn: Any, inputs: Sequence[Any]) -> None:
        """Check the index arrays of a gather. A clipped gather is assumed to be within bounds."""
        operand, indices = inputs
        # A core supports few gather patterns, which further operations on the indices would break.
        if not self._is_interpreted or eqn.params["mode"] is lax.GatherScatterMode.CLIP:
            return
        sizes = eqn.params["slice_sizes"]
        for column, dim in enumerate(eqn.params["dimension_numbers"].start_index_map):
            self._slice(eqn, operand, dim, indices[..., column], sizes[dim])

    def _slice(self, eqn: Any, operand: Any, dim: int, start: Any, size: int) -> None:
        """Check a slice of an array rather than a ref."""
        if "index" not in self._checks or not isinstance(start, jax_core.Tracer):
            return
        last = operand.shape[dim] - size
        self._add(
            Site(
                check="index",
                operation=eqn.primitive.name,
                source=lines.source_at(eqn, self._place),
                values=(("index", "int32"),),
                details={
                    "dim": dim,
                    "size": size,
                    "bound": operand.shape[dim],
                    "dims": ("…",) * operand.ndim,
                    "shape": tuple(operand.shape),
                    "dtype": str(operand.dtype),
                    "space": None,
                },
            ),
            conditions.is_outside(start, last),
            values=functools.partial(conditions.first_outside, start, last),
        )

    def _add(
        self,
        site: Site,
        failed: Any,
        *,
        confirmed: Callable[[], Any] | None = None,
        values: Callable[[], Sequence[Any]] = lambda: (),
    ) -> None:
        number = len(self.sites)
        loops = tuple(loop.begins for loop in self._place.loops[-MAX_LOOPS:])
        self.sites.append(replace(site, step=self._place.step, loops=loops))
        self._regions[-1].append(
            Pending(site=number, failed=failed, confirmed=confirmed, values=values)
        )
