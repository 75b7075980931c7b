"""Wording of prints that a TPU does not support, each with the reason."""

from __future__ import annotations

from collections.abc import Sequence

from pallas_debug.findings.sighting import Wording

_RECORDER = "on a TPU the log recorder formats what is printed"


def ordered() -> Wording:
    return Wording(
        "it is ordered",
        "a kernel prints in the order of its grid points, and in no other",
        "leave `ordered=True` out",
    )


def surrogate(fmt: str, character: str) -> Wording:
    return Wording(
        f"the format string {fmt!r} has the lone surrogate {character!r}",
        "it goes into the compiled program as UTF-8, which has no lone surrogates",
        "leave it out",
    )


def keyword(name: str) -> Wording:
    return Wording(
        f"{name!r} is a keyword argument",
        f"{_RECORDER}, and it counts its arguments",
        f"write `{{}}` for `{{{name}}}`, and give the value by position",
    )


def no_array(argument: object) -> Wording:
    return Wording(
        f"{argument!r} is not an array",
        f"{_RECORDER}, and it takes only numbers",
        "put it into the format string, where it is known while the kernel is traced",
    )


def ref() -> Wording:
    return Wording(
        "a ref is printed, rather than what it holds",
        f"{_RECORDER}, and it takes only values",
        "read it first, as in `x_ref[...]`, or one element of it",
    )


def several_arrays(shapes: Sequence[str]) -> Wording:
    return Wording(
        f"{', '.join(shapes)} are printed together",
        f"{_RECORDER}: any number of scalars, or one array by itself",
        "print each array in a `pl.debug_print` of its own",
    )


def array_not_last(fmt: str) -> Wording:
    return Wording(
        f"an array is printed with the format string {fmt!r}, which does not end in its one `{{}}`",
        f"{_RECORDER}: for an array, a text and then the array",
        "let the format string end in `{}`, without `{{` or `}}` before it",
    )


def bools(shape: Sequence[int]) -> Wording:
    return Wording(
        f"an array of booleans is printed, bool{list(shape)}",
        "libtpu refuses buffers of booleans, or aborts at them",
        "print `x.astype(jnp.int32)`",
    )


def malformed(fmt: str, error: object) -> Wording:
    return Wording(
        f"the format string {fmt!r} is none: {error}",
        "while it traces a kernel, jax looks only at the first field",
        "leave the brace out, or write it twice after the last `{}`",
    )


def format_spec(fmt: str, spec: str, *, takes_placeholders: bool) -> Wording:
    return Wording(
        f"the format string {fmt!r} has the format spec `{spec}`",
        f"{_RECORDER}, and it knows only `{{}}`",
        "write `{}`; to print less of a number, round it in the kernel"
        if takes_placeholders
        else "leave the placeholders out, and print the values after the text, as float32",
    )


def named_field(fmt: str, name: str) -> Wording:
    return Wording(
        f"the format string {fmt!r} has the field `{{{name}}}`",
        f"{_RECORDER}, and it counts its arguments",
        "write `{}`, and give the values in that order",
    )


def wrong_number(fmt: str, wanted: int, given: int) -> Wording:
    arguments = f"{wanted} argument" if wanted == 1 else f"{wanted} arguments"
    return Wording(
        f"the format string {fmt!r} expects {arguments}, "
        f"and {given} {'is' if given == 1 else 'are'} given",
        f"{_RECORDER}: each `{{}}` takes one argument",
        "write as many `{}` as there are values",
    )


def brace_first(fmt: str) -> Wording:
    return Wording(
        f"the format string {fmt!r} has a `{{{{` or `}}}}` before a `{{}}`",
        "jax counts the brace as a placeholder, and the values after it get the wrong one",
        "put braces after the last `{}`, or use parentheses",
    )


def scalar_dtype(dtype: str, allowed: Sequence[str]) -> Wording:
    """Report a scalar whose dtype `{}` does not accept in this jax."""
    if dtype.startswith(("int", "uint", "bool")):
        advice = "print `x.astype(jnp.int32)`"
    elif "float32" in allowed:
        advice = "print `x.astype(jnp.float32)`"
    else:
        advice = "leave the `{}` out, and print `x.astype(jnp.float32)` after the text"
    either = " or ".join([", ".join(allowed[:-1]), allowed[-1]])
    return Wording(
        f"a scalar of type {dtype} is printed with a `{{}}`",
        f"{_RECORDER}: in this jax `{{}}` takes {either}",
        advice,
    )


def bare_scalar(fmt: str, dtype: str, libtpu: str) -> Wording:
    """Report a scalar after a format string without a placeholder for it."""
    if dtype not in ("int32", "uint32"):
        advice = "print `x.astype(jnp.float32)`"
    elif "{" not in fmt and "}" not in fmt:
        advice = f"write {fmt + ' {}'!r}"
    else:
        advice = "write a `{}` for it, and no brace"
    return Wording(
        f"a scalar of type {dtype} is printed without a `{{}}` for it, after {fmt!r}",
        f"libtpu {libtpu} aborts at that: without a `{{}}` it takes only float32",
        advice,
    )
