"""Names in a program that are not those of its kernel. Text only: it imports nothing."""

from __future__ import annotations

import re

CHECKIFY = "jax.experimental.checkify"


def _words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\w+", text))


ELEMENTWISE = frozenset(
    _words(
        """
        abs acos acosh asin asinh atan atan2 atanh cbrt ceil clamp clz conj cos cosh erf erf_inv
        erfc exp exp2 expm1 floor imag is_finite log log1p logistic max min nextafter
        population_count pow real rem rsqrt select_n shift_left shift_right_arithmetic
        shift_right_logical sign sin sinh sqrt square tan tanh add sub mul div lt le gt ge eq ne neg
        """
    )
)
"""Primitives with a function in `lax` that takes only their operands."""

ARGUMENTS, AXES, ENABLE_X64, CALL = "ARGUMENTS", "AXES", "ENABLE_X64", "call"
"""Names that each program defines."""

RESERVED = frozenset(
    _words(
        """
        jax jnp np lax pl pltpu args program ARGUMENTS AXES ENABLE_X64 call
        TOPOLOGY DEVICE_KIND NUM_CORES NUM_DEVICES SETTINGS OPTIONS FLAGS MODULE
        base64 zlib compile_only compiled failed lowered main
        Exception SystemExit list print tuple type zip
        """
    )
)
"""Names of modules, of what each program defines, and of the script around it: no function,
operand or value of a kernel may have one."""
