"""Checks: for each equation of a kernel, whether it can fail, and how to detect that.

`Checker` visits a kernel as it is replayed (`rewrite.py`). For an equation that can fail, it emits
the condition and leaves recording to the recorder (`recording.py`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src import checkify
from jax._src import core as jax_core
from jax._src.pallas import primitives as pallas_primitives
from jax._src.pallas.mosaic import primitives as tpu_primitives
from jax._src.state import indexing

from pallas_debug.bridge.instrument import blocks, conditions, flow
from pallas_debug.bridge.instrument.flow import Provenance
from pallas_debug.bridge.instrument.primitives import (
    ACCESSES,
    MAKES_INFINITY,
    MAKES_NAN,
    capacity,
)
from pallas_debug.bridge.instrument.recording import (
    CheckedRegion,
    Pending,
    Recorder,
    Tripwire,
    any_of,
)
from pallas_debug.bridge.instrument.sites import MAX_LOOPS, MAX_VALUES, RefOperand, Site, shape_text
from pallas_debug.bridge.jaxprs import lines, rewrite


class Checker(rewrite.Visitor):
    """Visitor that checks a kernel's equations and records failures.

    Args:
      checks: names, as listed in `defaults.CHECKS`.
      operands: the kernel's refs, by the `id` of their tracers.
      recorder: records failures.
    """

    def __init__(
        self,
        checks: Sequence[str],
        operands: dict[int, RefOperand],
        recorder: Recorder | Tripwire | None,
    ) -> None:
        self._checks = frozenset(checks)
        self._operands = operands
        self._recorder = recorder
        self._kept_alive: list[Any] = []
        self._regions: list[CheckedRegion] = []  # regions being visited, innermost last
        self._clean: dict[int, Any] = {}  # arrays known to hold no NaN
        self._origins = Provenance()
        self._tables = {i: r.name for i, r in operands.items() if r.kind == "scalar_prefetch"}
        self._place = rewrite.ProgramPoint()
        self.sites: list[Site] = []
        self.not_entered: list[str] = []
        self.left_out = 0

    # Called by `rewrite.replay`.

    def before(
        self, eqn: Any, inputs: Sequence[Any], place: rewrite.ProgramPoint
    ) -> Sequence[Any] | None:
        self._place = place
        primitive = eqn.primitive
        if primitive is checkify.check_p:
            return self._user_check(eqn, inputs)
        if primitive in ACCESSES:
            self._access(eqn, inputs)
        elif primitive is tpu_primitives.dma_start_p:
            self._copy(eqn, inputs)
        elif primitive is pallas_primitives.multiple_of_p:
            self._hint(eqn, inputs[0])
        elif primitive in (lax.div_p, lax.rem_p):
            self._division(eqn, inputs)
        elif primitive is lax.dynamic_slice_p:
            self._dynamic_slice(eqn, inputs)
        elif primitive is lax.gather_p:
            self._gather(eqn, inputs)
        return None

    def after(
        self, eqn: Any, inputs: Sequence[Any], outputs: Sequence[Any], place: rewrite.ProgramPoint
    ) -> None:
        self._place = place
        if ACCESSES.get(eqn.primitive, ("read",))[0] == "read":
            self._origins.follow(eqn, inputs, outputs, self._tables)
        if eqn.primitive in ACCESSES:
            self._first_read(eqn, inputs, outputs)
            return
        if eqn.primitive is lax.select_n_p:
            self._selected(inputs[1:])
        if flow.is_clean_constant(eqn):
            self._clean[id(outputs[0])] = outputs[0]
        if eqn.primitive.name in MAKES_NAN and "nan" in self._checks:
            self._born("nan", conditions.is_nan, eqn, inputs, outputs[0])
        if eqn.primitive.name in MAKES_INFINITY and "inf" in self._checks:
            self._born("inf", conditions.is_infinite, eqn, inputs, outputs[0])
        if self._trips and len(outputs) == 1:
            self._regions[-1].flow.follow(eqn, inputs, outputs)

    def entering(self, place: rewrite.ProgramPoint) -> None:
        self._regions.append(CheckedRegion())

    def leaving(self, place: rewrite.ProgramPoint) -> None:
        region = self._regions.pop()
        if region.pending and self._recorder is not None:
            self._recorder.write(region, [loop.iteration for loop in place.loops[-MAX_LOOPS:]])

    def scoped(self, refs: Sequence[Any], names: Sequence[str]) -> None:
        for ref, name in zip(refs, names, strict=True):
            self._operands[id(ref)] = RefOperand(name=name, kind="scratch", is_scoped=True)
            self._kept_alive.append(ref)

    def wants(self, jaxpr: Any) -> bool:
        return capacity(jaxpr, tuple(self._checks)) > 0

    @property
    def _trips(self) -> bool:
        """Whether it suffices to know that there is a NaN."""
        return isinstance(self._recorder, Tripwire)

    @property
    def _records(self) -> bool:
        """Whether elements of arrays are recorded: not in a core's scalar memory."""
        return isinstance(self._recorder, Recorder) and self._recorder.vectors

    def finished(self) -> tuple[Site, ...]:
        """All sites, with what was learned about their values after them."""
        for number in self._origins.hidden:
            self._mark(number, hidden=True)
        return tuple(self.sites)

    def _mark(self, number: int, **facts: bool) -> None:
        site = self.sites[number]
        self.sites[number] = replace(site, details={**site.details, **facts})

    def unknown(self, eqn: Any) -> None:
        self.not_entered.append(eqn.primitive.name)

    # The checks.

    def blocks(self, mapping: Any, grid_point: Sequence[Any], prefetched: Sequence[Any]) -> None:
        """Check that each operand's block at the current grid point begins within its array."""
        if "index" not in self._checks:
            return
        self.entering(self._place)
        operands = list(self._operands.values())[mapping.num_index_operands :]
        for found in blocks.checks(mapping, operands, grid_point, prefetched, self._tables):
            index = [found.index]
            self._add_index(found.site, found.failed, index.copy, found.entry)
        self.leaving(self._place)

    def _add_index(
        self,
        site: Site,
        failed: Any,
        index: Callable[[], Sequence[Any]],
        entry: flow.Entry | None,
    ) -> None:
        """Add the check of an index, which records the table entry that it was computed from."""
        more: tuple[Any, ...] = ()
        if entry is not None and self._records and len(entry.index) + 2 <= MAX_VALUES:
            more = (entry.value, *entry.index)
            site = replace(site, details={**site.details, "table": entry.table})
        names = ("index", "entry", *(f"at{i}" for i in range(MAX_VALUES)))[: 1 + len(more)]
        self._add(
            replace(site, values=tuple((name, "int32") for name in names)),
            failed,
            values=lambda: [*index(), *more],
        )

    def _user_check(self, eqn: Any, inputs: Sequence[Any]) -> Sequence[Any] | None:
        if not self._checks:
            return None
        if "user" not in self._checks:
            self.left_out += 1  # as `checkify` does for categories that were not requested
            return []
        error = jax.tree.unflatten(eqn.params["err_tree"], inputs)
        is_one = len(error._metadata) == 1  # `check_error` may hold several
        for effect, failed in error._pred.items():
            payload = error._payload[effect]
            scalars = [x for x in payload if jnp.shape(x) == ()][:MAX_VALUES]
            compared = self._origins.failed(failed) if self._records else None
            example = conditions.example_of(compared) if compared is not None else None
            if example is None or len(scalars) + len(example.kept) > MAX_VALUES:
                compared, example = None, None
            self._add(
                Site(
                    check="user",
                    operation="check",
                    source=lines.source_at(eqn, self._place),
                    values=(
                        *((f"{i}", conditions.kept_dtype(x)) for i, x in enumerate(scalars)),
                        *(example.kept if example is not None else ()),
                    ),
                    details={
                        "payload": tuple(
                            (tuple(jnp.shape(x)), str(jnp.result_type(x))) for x in payload
                        ),
                        **({"compares": compared.sign} if compared is not None else {}),
                        **(example.details if example is not None else {}),
                    },
                    error=next(iter(error._metadata.values())) if is_one else None,
                ),
                failed,
                values=functools.partial(conditions.recorded, scalars, example),
            )
        return []

    def _access(self, eqn: Any, inputs: Sequence[Any]) -> None:
        if "index" not in self._checks:
            return
        what, first = ACCESSES[eqn.primitive]
        if first is None:
            ref, transforms, *_ = jax.tree.unflatten(eqn.params["args_tree"], inputs)
        else:
            ref = inputs[0]
            transforms = jax.tree.unflatten(eqn.params["tree"], inputs[first:])
        self._indices(eqn, ref, transforms, what)

    def _copy(self, eqn: Any, inputs: Sequence[Any]) -> None:
        if "index" not in self._checks:
            return
        source, destination, *_ = jax.tree.unflatten(eqn.params["tree"], inputs)
        for ref, what in ((source, "read"), (destination, "write")):
            if conditions.is_transformed(ref):
                self._indices(eqn, ref.ref, ref.transforms, what)

    def _indices(self, eqn: Any, ref: Any, transforms: Sequence[Any], what: str) -> None:
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
                self._add_index(
                    Site(
                        check="index",
                        operation=what,
                        source=lines.source_at(eqn, self._place),
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
                            "space": conditions.space(aval),
                        },
                    ),
                    conditions.is_outside(start, last),
                    functools.partial(conditions.first_outside, start, last),
                    self._origins.entry(start),
                )

    def _dynamic_slice(self, eqn: Any, inputs: Sequence[Any]) -> None:
        operand, *starts = inputs
        sizes = eqn.params["slice_sizes"]
        for dim, (start, size) in enumerate(zip(starts[: operand.ndim], sizes, strict=True)):
            self._slice(eqn, operand, dim, start, size)

    def _gather(self, eqn: Any, inputs: Sequence[Any]) -> None:
        """Check the index arrays of a gather. A clipped gather is taken to be within bounds."""
        operand, indices = inputs
        # A core supports few gather patterns, which further operations on the indices would break.
        is_interpreted = self._recorder is not None and self._recorder.vectors
        if not is_interpreted or eqn.params["mode"] is lax.GatherScatterMode.CLIP:
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

    def _hint(self, eqn: Any, value: Any) -> None:
        if "hint" not in self._checks or not isinstance(value, jax_core.Tracer):
            return
        # Several divisors may be claimed for one value; check their least common multiple.
        divisor = math.lcm(*map(int, np.atleast_1d(eqn.params["values"])))
        failed = lax.rem(value, lax.full_like(value, divisor)) != 0
        self._add(
            Site(
                check="hint",
                operation="multiple_of",
                source=lines.source_at(eqn, self._place),
                values=(("value", "int32"),),
                details={"divisor": divisor},
            ),
            failed,
            values=lambda: [conditions.one_where(failed, value)],
        )

    def _division(self, eqn: Any, inputs: Sequence[Any]) -> None:
        left, right = inputs
        is_float = bool(jnp.issubdtype(jnp.result_type(right), jnp.inexact))
        if ("float_div" if is_float else "div") not in self._checks:
            return
        if not isinstance(right, jax_core.Tracer):
            return  # a constant; jax itself folds a division by a constant zero
        shape = jnp.shape(right)
        failed = conditions.wide(right) == 0
        example = self._example(shape, lambda: failed, (left,))
        kept = (("0", conditions.kept_dtype(left)),) if jnp.shape(left) == () else ()
        self._add(
            Site(
                check="div",
                operation=eqn.primitive.name,
                source=lines.source_at(eqn, self._place),
                values=example.kept if example is not None else kept,
                details={
                    "shape": shape_text(str(right.dtype), right.shape),
                    "float": is_float,
                    **(example.details if example is not None else {}),
                },
            ),
            failed,
            values=example.values if example is not None else lambda: [left] if kept else [],
        )

    def _example(
        self, shape: tuple[int, ...], failed: Callable[[], Any], operands: Sequence[Any]
    ) -> conditions.Example | None:
        """The first element that fails, if it can be recorded."""
        fits = len(operands) < MAX_VALUES and all(conditions.broadcasts(x, shape) for x in operands)
        if not self._records or not fits:
            return None
        return conditions.Example(shape=shape, failed=failed, operands=tuple(operands))

    def _born(
        self,
        check: str,
        is_bad: Callable[[Any], Any],
        eqn: Any,
        inputs: Sequence[Any],
        output: Any,
    ) -> None:
        """Check for a NaN or an infinity produced from operands that hold neither."""
        if not conditions.is_float(output) or conditions.has_bad_constant(is_bad, inputs):
            return
        arrays = [x for x in inputs if isinstance(x, jax_core.Tracer) and conditions.is_float(x)]
        shape = jnp.shape(output)
        scalars = [x for x in inputs if jnp.shape(x) == () and conditions.is_float(x) and not shape]
        elementwise = all(
            conditions.broadcasts(x, shape) if self._records else jnp.shape(x) in (shape, ())
            for x in arrays
        ) and not eqn.primitive.name.startswith(("reduce", "dot"))
        may_trip = self._trips and check == "nan"
        born = None if may_trip else is_bad(output)
        if elementwise and not may_trip:
            for x in arrays:
                born = born & ~is_bad(x)

        def confirmed() -> Any:
            return functools.reduce(lambda clean, x: clean & ~any_of(is_bad(x)), arrays, True)

        floats = [x for x in inputs if conditions.is_float(x)] if elementwise else []
        example = self._example(shape, lambda: born, floats)
        kept = tuple((f"{i}", conditions.kept_dtype(x)) for i, x in enumerate(scalars[:MAX_VALUES]))
        if check == "nan":
            self._origins.mark(output, len(self.sites))
        self._add(
            Site(
                check=check,
                operation=eqn.primitive.name,
                source=lines.source_at(eqn, self._place),
                values=example.kept if example is not None else kept,
                details={
                    "shape": shape_text(str(output.dtype), output.shape),
                    "operands": tuple(
                        shape_text(str(jnp.result_type(x)), jnp.shape(x)) for x in inputs
                    ),
                    **(example.details if example is not None else {}),
                },
            ),
            born,
            confirmed=None if elementwise else confirmed,
            values=example.values if example is not None else lambda: scalars[:MAX_VALUES],
            nan_in=output if may_trip else None,
        )

    def _first_read(self, eqn: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Check for reads and writes of NaN, which interpreters put into unwritten memory."""
        known = self._operands.get(id(inputs[0]))
        if "uninitialized" not in self._checks or known is None or known.kind == "scalar_prefetch":
            return
        is_read = ACCESSES[eqn.primitive][0] == "read"
        value = outputs[0] if is_read else inputs[1]
        if not conditions.is_float(value):
            return
        is_clean = id(value) in self._clean
        if is_read and known.kind == "input":
            self._origins.mark(value, len(self.sites))
        aval = jax_core.typeof(inputs[0])
        failed = None if self._trips or is_clean else conditions.is_nan(value)
        example = self._example(jnp.shape(value), lambda: failed, ()) if is_read else None
        self._add(
            Site(
                check="uninitialized",
                operation=known.kind if is_read else "store",
                source=lines.source_at(eqn, self._place),
                operand=known.name,
                details={
                    "shape": tuple(aval.shape),
                    "dtype": str(aval.dtype),
                    "space": conditions.space(aval),
                    "conditional": self._place.branches > 0,
                    "scoped": known.is_scoped,
                    **(example.details if example is not None else {}),
                },
                values=example.kept if example is not None else (),
            ),
            failed,
            values=example.values if example is not None else lambda: (),
            nan_in=value,
            is_read=is_read,
        )

    def _selected(self, cases: Sequence[Any]) -> None:
        """Mark values as masked that are operands of a select, as when masking padding."""
        for number in frozenset[int]().union(*map(self._origins.sites, cases)):
            self._mark(number, masked=True)

    def _add(
        self,
        site: Site,
        failed: Any,
        *,
        confirmed: Callable[[], Any] | None = None,
        values: Callable[[], Sequence[Any]] = lambda: (),
        nan_in: Any = None,
        is_read: bool = False,
    ) -> None:
        number = len(self.sites)
        loops = tuple(loop.begins for loop in self._place.loops[-MAX_LOOPS:])
        self.sites.append(replace(site, step=self._place.step, loops=loops))
        if id(nan_in) in self._clean:
            return  # keep the site: a store site shows that the output is written
        self._regions[-1].pending.append(
            Pending(
                site=number,
                failed=failed,
                confirmed=confirmed,
                values=values,
                nan_in=nan_in,
                is_read=is_read,
            )
        )
