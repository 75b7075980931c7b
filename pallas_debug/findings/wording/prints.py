"""Wording of prints that a TPU does not support, each with the reason."""

from __future__ import annotations

from collections.abc import Sequence

from pallas_debug.findings.case import Words

_RECORDER = "on a TPU, the log recorder formats prints"


def ordered() -> Words:
    return Words(
        "it is ordered",
        "a kernel prints only in the order of its grid points",
        "remove `ordered=True`",
    )


def surrogate(fmt: str, character: str) -> Words:
    return Words(
        f"the format string {fmt!r} has the lone surrogate {character!r}",
        "it is stored in the compiled program as UTF-8, which cannot encode lone surrogates",
        "remove it",
    )


def keyword(name: str) -> Words:
    return Words(
        f"{name!r} is a keyword argument",
        f"{_RECORDER} and takes only positional arguments",
        f"write `{{}}` for `{{{name}}}`, and pass the value by position",
    )


def no_array(argument: object) -> Words:
    return Words(
        f"{argument!r} is not an array",
        f"{_RECORDER} and takes only numbers",
        "put it into the format string, if it is known while the kernel is traced",
    )


def ref() -> Words:
    return Words(
        "a ref is printed instead of its value",
        f"{_RECORDER} and takes only values",
        "load it or one of its elements first, as in `x_ref[...]`",
    )


def several_arrays(shapes: Sequence[str]) -> Words:
    return Words(
        f"{', '.join(shapes)} are printed together",
        f"{_RECORDER}: any number of scalars, or a single array",
        "print each array in a separate `pl.debug_print`",
    )


def array_not_last(fmt: str) -> Words:
    return Words(
        f"an array is printed with the format string {fmt!r}, which does not end in its only "
        "`{}`",
        f"{_RECORDER}: an array must follow the text",
        "end the format string in `{}`, without `{{` or `}}` before it",
    )


def bools(shape: Sequence[int]) -> Words:
    return Words(
        f"an array of booleans is printed: bool{list(shape)}",
        "libtpu rejects boolean buffers or aborts",
        "print `x.astype(jnp.int32)`",
    )


def malformed(fmt: str, error: object) -> Words:
    return Words(
        f"the format string {fmt!r} is invalid: {error}",
        "while tracing a kernel, jax checks only the first field",
        "remove the brace, or double it after the last `{}`",
    )


def format_spec(fmt: str, spec: str, *, takes_placeholders: bool) -> Words:
    return Words(
        f"the format string {fmt!r} has the format spec `{spec}`",
        f"{_RECORDER} and supports only `{{}}`",
        "write `{}`; to print fewer digits, round the number in the kernel"
        if takes_placeholders
        else "remove the placeholders, and print the values after the text, as float32",
    )


def named_field(fmt: str, name: str) -> Words:
    return Words(
        f"the format string {fmt!r} has the field `{{{name}}}`",
        f"{_RECORDER} and takes only positional arguments",
        "write `{}`, and pass the values in that order",
    )


def wrong_number(fmt: str, wanted: int, given: int) -> Words:
    arguments = f"{wanted} argument" if wanted == 1 else f"{wanted} arguments"
    return Words(
        f"the format string {fmt!r} expects {arguments}, "
        f"and {given} {'is' if given == 1 else 'are'} given",
        f"{_RECORDER}: each `{{}}` takes one argument",
        "write as many `{}` as there are values",
    )


def brace_first(fmt: str) -> Words:
    return Words(
        f"the format string {fmt!r} has a `{{{{` or `}}}}` before a `{{}}`",
        "jax counts the brace as a placeholder, so the values after it go to the wrong ones",
        "put braces after the last `{}`, or use parentheses",
    )


def scalar_dtype(dtype: str, allowed: Sequence[str]) -> Words:
    """Report a scalar whose dtype `{}` does not accept in this jax."""
    if dtype.startswith(("int", "uint", "bool")):
        advice = "print `x.astype(jnp.int32)`"
    elif "float32" in allowed:
        advice = "print `x.astype(jnp.float32)`"
    else:
        advice = "remove the `{}`, and print `x.astype(jnp.float32)` after the text"
    either = " or ".join([", ".join(allowed[:-1]), allowed[-1]])
    return Words(
        f"a scalar of type {dtype} is printed with a `{{}}`",
        f"{_RECORDER}: in this jax, `{{}}` takes {either}",
        advice,
    )


def bare_scalar(fmt: str, dtype: str, libtpu: str) -> Words:
    """Report a scalar after a format string without a placeholder for it."""
    if dtype not in ("int32", "uint32"):
        advice = "print `x.astype(jnp.float32)`"
    elif "{" not in fmt and "}" not in fmt:
        advice = f"write {fmt + ' {}'!r}"
    else:
        advice = "write a `{}` for it, and no other brace"
    return Words(
        f"a scalar of type {dtype} is printed without a `{{}}` for it, after {fmt!r}",
        f"libtpu {libtpu} aborts at that: without a `{{}}` it takes only float32",
        advice,
    )
