"""Checks for each equation of a kernel: whether it can fail, and how to detect a failure.

`Checker` visits a kernel as it is replayed (`rewrite.py`). For an equation that can fail, it emits
the condition and leaves recording to the recorder (`recording.py`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_debug.bridge.instrument import conditions
from pallas_debug.bridge.instrument.bounds import BoundsChecker
from pallas_debug.bridge.instrument.primitives import ACCESSES, MAKES_INFINITY, MAKES_NAN, capacity
from pallas_debug.bridge.instrument.recording import any_of
from pallas_debug.bridge.instrument.sites import MAX_VALUES, Site
from pallas_debug.bridge.jaxcompat import checkify, jax_core, pallas_primitives, tpu_primitives
from pallas_debug.bridge.jaxprs import lines, rewrite
from pallas_debug.findings.facts import array_text


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
        if eqn.primitive.name in MAKES_NAN and "nan" in self._checks:
            self._born("nan", conditions.is_nan, eqn, inputs, outputs[0])
        if eqn.primitive.name in MAKES_INFINITY and "inf" in self._checks:
            self._born("inf", conditions.is_infinite, eqn, inputs, outputs[0])

    def wants(self, jaxpr: Any) -> bool:
        return capacity(jaxpr) > 0

    def unknown(self, eqn: Any) -> None:
        self.not_entered.append(eqn.primitive.name)

    # The checks.

    def _user_check(self, eqn: Any, inputs: Sequence[Any]) -> Sequence[Any] | None:
        if "user" not in self._checks:
            self.left_out += 1  # like `checkify` for categories that were not requested
            return []
        error = jax.tree.unflatten(eqn.params["err_tree"], inputs)
        is_one = len(error._metadata) == 1  # `check_error` may hold several
        for effect, failed in error._pred.items():
            payload = error._payload[effect]
            scalars = [x for x in payload if jnp.shape(x) == ()][:MAX_VALUES]
            self._add(
                Site(
                    check="user",
                    operation="check",
                    source=lines.source_at(eqn, self._place),
                    values=tuple((f"{i}", conditions.kept_dtype(x)) for i, x in enumerate(scalars)),
                    details={
                        "payload": tuple(
                            (tuple(jnp.shape(x)), str(jnp.result_type(x))) for x in payload
                        )
                    },
                    error=next(iter(error._metadata.values())) if is_one else None,
                ),
                failed,
                values=scalars.copy,
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
        failed = conditions.wide(right) == 0
        kept = (("0", conditions.kept_dtype(left)),) if jnp.shape(left) == () else ()
        self._add(
            Site(
                check="div",
                operation=eqn.primitive.name,
                source=lines.source_at(eqn, self._place),
                values=kept,
                details={"shape": array_text(str(right.dtype), right.shape), "float": is_float},
            ),
            failed,
            values=lambda: [left] if kept else [],
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
            jnp.shape(x) in (shape, ()) for x in arrays
        ) and not eqn.primitive.name.startswith(("reduce", "dot"))
        born = is_bad(output)
        if elementwise:
            for x in arrays:
                born = born & ~is_bad(x)

        def confirmed() -> Any:
            return functools.reduce(lambda clean, x: clean & ~any_of(is_bad(x)), arrays, True)

        kept = tuple((f"{i}", conditions.kept_dtype(x)) for i, x in enumerate(scalars[:MAX_VALUES]))
        self._add(
            Site(
                check=check,
                operation=eqn.primitive.name,
                source=lines.source_at(eqn, self._place),
                values=kept,
                details={
                    "shape": array_text(str(output.dtype), output.shape),
                    "operands": tuple(
                        array_text(str(jnp.result_type(x)), jnp.shape(x)) for x in inputs
                    ),
                },
            ),
            born,
            confirmed=None if elementwise else confirmed,
            values=lambda: scalars[:MAX_VALUES],
        )
