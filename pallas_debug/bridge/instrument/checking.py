"""Checks for each equation of a kernel: whether it can fail, and how to detect a failure.

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

from pallas_debug.bridge.instrument import conditions, flow
from pallas_debug.bridge.instrument.bounds import NEVER, BoundsChecker
from pallas_debug.bridge.instrument.primitives import ACCESSES, MAKES_INFINITY, MAKES_NAN, capacity
from pallas_debug.bridge.instrument.recording import any_of
from pallas_debug.bridge.instrument.sites import MAX_VALUES, Site
from pallas_debug.bridge.jaxprs import lines, rewrite
from pallas_debug.findings.wording.facts import array_text


class Checker(BoundsChecker):
    """Visitor that checks a kernel's equations and records failures."""

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

    def wants(self, jaxpr: Any) -> bool:
        return capacity(jaxpr, tuple(self._checks)) > 0

    def finished(self) -> tuple[Site, ...]:
        """All sites, with later information about their values."""
        for number in self._origins.hidden:
            self._mark(number, hidden=True)
        return tuple(self.sites)

    def _mark(self, number: int, **facts: bool) -> None:
        site = self.sites[number]
        self.sites[number] = replace(site, details={**site.details, **facts})

    def unknown(self, eqn: Any) -> None:
        self.not_entered.append(eqn.primitive.name)

    # The checks.

    def _user_check(self, eqn: Any, inputs: Sequence[Any]) -> Sequence[Any] | None:
        if not self._checks:
            return None
        if "user" not in self._checks:
            self.left_out += 1  # like `checkify` for categories that were not requested
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
                details={"divisor": divisor, "of_pipeline": lines.is_of_pipeline(eqn)},
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
                    "shape": array_text(str(right.dtype), right.shape),
                    "float": is_float,
                    **(example.details if example is not None else {}),
                },
            ),
            failed,
            values=lambda: [left] if kept else [],
            example=example,
        )

    def _example(
        self,
        shape: tuple[int, ...],
        failed: Callable[[], Any],
        operands: Sequence[Any],
        ranges: tuple[Any, ...] = (),
    ) -> conditions.Example | None:
        """The first element that fails, if it can be recorded."""
        fits = len(operands) < MAX_VALUES and all(conditions.broadcasts(x, shape) for x in operands)
        if not self._records or not fits:
            return None
        return conditions.Example(
            shape=shape, failed=failed, operands=tuple(operands), ranges=ranges
        )

    def _born(
        self,
        check: str,
        is_bad: Callable[[Any], Any],
        eqn: Any,
        inputs: Sequence[Any],
        output: Any,
    ) -> None:
        """Check for a NaN or an infinity produced from operands that contain neither."""
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
        ranges = () if elementwise else tuple(x for x in arrays if jnp.size(x))[:2]
        example = self._example(shape, lambda: born, floats, ranges)
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
                    "shape": array_text(str(output.dtype), output.shape),
                    "operands": tuple(
                        array_text(str(jnp.result_type(x)), jnp.shape(x)) for x in inputs
                    ),
                    **(example.details if example is not None else {}),
                },
            ),
            born,
            confirmed=None if elementwise else confirmed,
            values=lambda: scalars[:MAX_VALUES],
            example=example,
            nan_in=output if may_trip else None,
        )

    def _first_read(self, eqn: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Check for reads and writes of NaN, which interpreters put into unwritten memory."""
        known = self._operands.get(id(inputs[0]))
        if "uninitialized" not in self._checks or known is None or known.kind == "scalar_prefetch":
            return
        is_read = ACCESSES[eqn.primitive][0] == "read"
        value = outputs[0] if is_read else inputs[1]
        is_float = conditions.is_float(value)
        if not is_float and not (self._fills and conditions.may_be_filled(value)):
            return
        is_clean = id(value) in self._clean
        if is_read:
            self._origins.mark(value, len(self.sites))
        aval = jax_core.typeof(inputs[0])
        is_bool = jnp.result_type(value) == jnp.bool_  # neither value of a boolean is rare
        is_fill = is_read and not is_float and not is_bool and known.kind != "input"
        failed = None if self._trips or is_clean else conditions.is_nan(value)
        if not is_float:
            failed = conditions.is_fill(value) if is_fill else NEVER
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
                    "space": conditions.space(aval, self._default_space),
                    "conditional": self._place.branches > 0,
                    "scoped": known.is_scoped,
                    "begins before": known.begins_before,
                    "copied from": self._unwritten_source(known.name),
                    "integer": not is_float,
                    **(example.details if example is not None else {}),
                },
                values=example.kept if example is not None else (),
            ),
            failed,
            example=example,
            nan_in=value if is_float else None,
            is_read=is_read,
            is_fill=is_fill,
        )

    def _selected(self, cases: Sequence[Any]) -> None:
        """Mark the operands of a select as masked, as when masking padding."""
        for number in frozenset[int]().union(*map(self._origins.sites, cases)):
            self._mark(number, masked=True)
