"""Which `debug_print`s of a kernel a TPU cannot do, before there is a TPU.

On a TPU a print is formatted by the log recorder, and far less is possible than in the interpret
modes. What is refused here was tried with jax 0.10.2 and libtpu 0.0.42, and with jax 0.12.0 and
libtpu 0.0.50, with and without the recorder: some prints are refused by jax as it lowers the
kernel, some abort libtpu, some come out wrong in silence.
"""

from __future__ import annotations

import functools
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np
from jax._src import core as jax_core
from jax._src import debugging
from jax._src.pallas.mosaic import lowering, sc_core

from pallas_debug.bridge.jaxprs import lines
from pallas_debug.bridge.jaxprs.params import jaxprs_of
from pallas_debug.model import Finding, SourceLine

KIND = "PrintNotSupported"
ENGINE = "print formats"

_RECORDER = "on a TPU the log recorder formats what is printed"

_NEEDS_FLOATS = (0, 0, 42)
"""The last libtpu that was seen to abort at a scalar without a placeholder that is no float32."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Why one print is not possible.

    Attributes:
      message: what of it is refused.
      cause: why.
      advice: what can be written instead.
    """

    message: str
    cause: str
    advice: str


def count(params: Mapping[str, Any]) -> int:
    """How many prints stand in a kernel, given by the parameters of its primitive."""
    return sum(1 for _ in _prints(params))


def findings(kernel: str, params: Mapping[str, Any]) -> tuple[Finding, ...]:
    """One for each print of a kernel that a TPU cannot do.

    Args:
      kernel: its name.
      params: of its primitive, as jax gave them.
    """
    if _is_for_sparse_core(params):  # whose rules are others
        return ()
    found = []
    for eqn, source in _prints(params):
        problem = check(eqn)
        if problem is None:
            continue
        found.append(
            Finding(
                kind=KIND,
                kernel=kernel,
                message=problem.message,
                source=source,
                cause=problem.cause,
                advice=problem.advice,
                values={"format": repr(eqn.params["fmt"])},
                engine=ENGINE,
            )
        )
    return tuple(found)


def check(eqn: Any) -> Problem | None:
    """What is wrong with a `debug_print`; None where a TPU can do it."""
    params = eqn.params
    fmt: str = params["fmt"]
    avals = [v.aval for v in eqn.invars]
    args, kwargs = debugging.merge_callback_args(params["in_tree"], avals, params["static_args"])
    return (
        _text_problem(fmt, ordered=params["ordered"])
        or _argument_problem(args, kwargs)
        or _shape_problem(avals)
        or (
            _vector_problem(fmt, avals[0], params["has_placeholders"])
            if avals and avals[0].shape
            else _scalar_problem(fmt, avals)
            if params["has_placeholders"]
            else _unformatted_problem(fmt, avals)
        )
    )


def _text_problem(fmt: str, *, ordered: bool) -> Problem | None:
    if ordered:
        return Problem(
            message="it is ordered",
            cause="a kernel's prints come in the order of its grid, and know no other",
            advice="leave `ordered=True` out",
        )
    try:
        fmt.encode()
    except UnicodeEncodeError as error:
        return Problem(
            message=f"the format string {fmt!r} has the lone surrogate {fmt[error.start]!r}",
            cause="it goes into the compiled program as UTF-8, which has no lone surrogates",
            advice="leave it out",
        )
    return None


def _argument_problem(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Problem | None:
    if kwargs:
        name = next(iter(kwargs))
        return Problem(
            message=f"{name!r} is a keyword argument",
            cause=f"{_RECORDER}, and it counts its arguments",
            advice=f"write `{{}}` for `{{{name}}}`, and give the value by position",
        )
    for arg in args:
        if isinstance(arg, jax_core.AbstractValue):
            continue
        return Problem(
            message=f"{arg!r} is no array",
            cause=f"{_RECORDER}, and it takes numbers alone",
            advice="put it into the format string, where it is known while the kernel is traced",
        )
    return None


def _shape_problem(avals: Sequence[Any]) -> Problem | None:
    if any(type(aval) is not jax_core.ShapedArray for aval in avals):
        return Problem(
            message="a ref is printed, and not what it holds",
            cause=f"{_RECORDER}, and it takes values alone",
            advice="read it first, as in `x_ref[...]`, or one element of it",
        )
    if len(avals) > 1 and any(aval.shape for aval in avals):
        shapes = ", ".join(f"{aval.dtype}{list(aval.shape)}" for aval in avals)
        return Problem(
            message=f"{shapes} are printed together",
            cause=f"{_RECORDER}: any number of scalars, or one array by itself",
            advice="print each array in a `pl.debug_print` of its own",
        )
    return None


def _vector_problem(fmt: str, aval: Any, has_placeholders: bool) -> Problem | None:
    if not has_placeholders or not fmt.endswith("{}"):
        return Problem(
            message=f"an array is printed with the format string {fmt!r}, "
            "which does not end in its one `{}`",
            cause=f"{_RECORDER}: for an array, a text and then the array",
            advice="let the format string end in `{}`, without `{{` or `}}` before it",
        )
    if aval.dtype == np.bool_:
        return Problem(
            message=f"an array of booleans is printed, bool{list(aval.shape)}",
            cause="libtpu refuses buffers of booleans, or aborts at them",
            advice="print `x.astype(jnp.int32)`",
        )
    return None


def _scalar_problem(fmt: str, avals: Sequence[Any]) -> Problem | None:
    try:
        fields = list(string.Formatter().parse(fmt))
    except ValueError as error:
        return Problem(
            message=f"the format string {fmt!r} is none: {error}",
            cause="while a kernel is traced, jax looks at the first field alone",
            advice="leave the brace out, or write it twice behind the last `{}`",
        )
    for _, name, spec, conversion in fields:
        if spec or conversion:
            written = f"!{conversion}" if conversion else f":{spec}"
            return Problem(
                message=f"the format string {fmt!r} has the format spec `{written}`",
                cause=f"{_RECORDER}, and it knows `{{}}` alone",
                advice="write `{}`; to print less of a number, round it in the kernel"
                if _type_problem(avals) is None
                else "leave the placeholders out, and print the values behind the text, as float32",
            )
        if name:
            return Problem(
                message=f"the format string {fmt!r} has the field `{{{name}}}`",
                cause=f"{_RECORDER}, and it counts its arguments",
                advice="write `{}`, and give the values in that order",
            )
    wanted = sum(name is not None for _, name, _, _ in fields)
    if wanted != len(avals):
        return Problem(
            message=f"the format string {fmt!r} expects {_arguments(wanted)}, "
            f"and {len(avals)} {'is' if len(avals) == 1 else 'are'} given",
            cause=f"{_RECORDER}: each `{{}}` takes one argument",
            advice="write as many `{}` as there are values",
        )
    return _brace_problem(fmt, fields) or _type_problem(avals)


def _brace_problem(fmt: str, fields: Sequence[Any]) -> Problem | None:
    """jax counts a brace as a placeholder: those behind it get another one's argument."""
    if all(name is not None for _, name, _, _ in fields[: sum(f[1] is not None for f in fields)]):
        return None
    return Problem(
        message=f"the format string {fmt!r} has a `{{{{` or `}}}}` before a `{{}}`",
        cause="jax counts the brace as a placeholder, and the values behind it get the wrong one",
        advice="put braces behind the last `{}`, or write parentheses",
    )


def _type_problem(avals: Sequence[Any]) -> Problem | None:
    allowed = ("int32", "uint32", *(("float32",) if _formats_floats() else ()))
    for aval in avals:
        if str(aval.dtype) in allowed:
            continue
        return Problem(
            message=f"a scalar of type {aval.dtype} is printed with a `{{}}`",
            cause=f"{_RECORDER}: in this jax `{{}}` takes {_either(allowed)}",
            advice=_instead(str(aval.dtype)),
        )
    return None


def _unformatted_problem(fmt: str, avals: Sequence[Any]) -> Problem | None:
    """Values behind a text without placeholders: any type, but for an abort of older compilers."""
    version = _libtpu()
    if version is None or version > _NEEDS_FLOATS:
        return None
    for aval in avals:
        if aval.dtype == np.float32:
            continue
        is_int = str(aval.dtype) in ("int32", "uint32")
        return Problem(
            message=f"a scalar of type {aval.dtype} is printed without a `{{}}` for it, "
            f"behind {fmt!r}",
            cause=f"libtpu {'.'.join(map(str, version))} aborts at that: without a `{{}}` it takes "
            "float32 alone",
            advice=f"write {fmt + ' {}'!r}"
            if is_int and "{" not in fmt and "}" not in fmt
            else "write a `{}` for it, and no brace"
            if is_int
            else "print `x.astype(jnp.float32)`",
        )
    return None


def _instead(dtype: str) -> str:
    if dtype.startswith(("int", "uint", "bool")):
        return "print `x.astype(jnp.int32)`"
    if _formats_floats():
        return "print `x.astype(jnp.float32)`"
    return "leave the `{}` out, and print `x.astype(jnp.float32)` behind the text"


def _arguments(number: int) -> str:
    return f"{number} argument" if number == 1 else f"{number} arguments"


def _either(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]])


def _formats_floats() -> bool:
    """Whether the installed jax tells the recorder of which type a value is; from 0.12 on."""
    return hasattr(lowering, "_aval_to_log_format_spec")


@functools.cache
def _libtpu() -> tuple[int, ...] | None:
    try:
        return tuple(int(part) for part in metadata.version("libtpu").split(".")[:3])
    except (metadata.PackageNotFoundError, ValueError):
        return None


def _is_for_sparse_core(params: Mapping[str, Any]) -> bool:
    kinds = (sc_core.ScalarSubcoreMesh, sc_core.VectorSubcoreMesh)
    return any(isinstance(mesh, kinds) for mesh in params.get("meshes") or ())


def _prints(params: Mapping[str, Any]) -> Iterator[tuple[Any, SourceLine | None]]:
    """Every print of a kernel, with its line or that of the call around it."""
    jaxprs = jaxprs_of(params)
    for jaxpr in jaxprs:
        yield from _prints_in(jaxpr, None)


def _prints_in(jaxpr: Any, outer: SourceLine | None) -> Iterator[tuple[Any, SourceLine | None]]:
    for eqn in jaxpr.eqns:
        inner = list(jax_core.jaxprs_in_params(eqn.params))
        if eqn.primitive is debugging.debug_print_p:
            yield eqn, lines.source_of(eqn) or outer
        elif inner:
            around = lines.source_of(eqn) or outer
            for sub in inner:
                yield from _prints_in(sub, around)
