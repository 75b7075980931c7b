"""Names in a program that are not those of its kernel. Text only: it imports nothing."""

from __future__ import annotations

import re

CHECKIFY = "jax.experimental.checkify"


def _words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\w+", text))


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
