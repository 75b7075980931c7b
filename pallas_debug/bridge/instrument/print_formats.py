"""Ahead-of-time detection of `debug_print`s that a TPU does not support.

On a TPU the log recorder formats prints and supports far less than the interpret modes. The rules
were determined with jax 0.10.2 and libtpu 0.0.42, and with jax 0.12.0 and libtpu 0.0.50, with and
without the recorder: jax rejects some prints during lowering, some abort libtpu, some silently
print the wrong text.
"""

from __future__ import annotations

import functools
import string
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

import numpy as np

from pallas_debug.bridge import jaxcompat
from pallas_debug.bridge.jaxcompat import debugging, jax_core, sc_core
from pallas_debug.bridge.jaxprs import lines
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.sighting import Sighting
from pallas_debug.model import Finding, SourceLine, Witness
from pallas_debug.render import plural

_Facts = Mapping[str, Any]
"""Facts of a print that a TPU does not support."""

_NEEDS_FLOATS = (0, 0, 42)
"""Last libtpu seen to abort on a scalar other than float32 printed without a placeholder."""


def count(params: Mapping[str, Any]) -> int:
    """Count the prints in a kernel, given the parameters of its primitive."""
    return sum(1 for _ in _prints(params))


def findings(kernel: str, params: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Return a finding for each print in a kernel that a TPU does not support.

    Args:
      kernel: name of the kernel.
      params: parameters of its primitive, as given by jax.
    """
    if _is_for_sparse_core(params):  # a GPU has different rules
        return ()
    found = []
    for eqn, source in _prints(params):
        problem = check(eqn)
        if problem is None:
            continue
        seen = Sighting(
            kernel=kernel,
            engine="print formats",
            witness=Witness(source=source, values={"format": repr(eqn.params["fmt"])}),
        )
        found.append(seen.of(Fault.PRINT_NOT_SUPPORTED, fmt=eqn.params["fmt"], **problem))
    return tuple(found)


def check(eqn: Any) -> _Facts | None:
    """Return facts about what is wrong with a `debug_print`; None if a TPU supports it."""
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
            else _unformatted_problem(avals)
        )
    )


def _text_problem(fmt: str, *, ordered: bool) -> _Facts | None:
    if ordered:
        return {"ordered": True}
    try:
        fmt.encode()
    except UnicodeEncodeError as error:
        return {"surrogate": fmt[error.start]}
    return None


def _argument_problem(args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Facts | None:
    if kwargs:
        return {"keyword": next(iter(kwargs))}
    others = (arg for arg in args if not isinstance(arg, jax_core.AbstractValue))
    return next(({"static": repr(arg)} for arg in others), None)


def _shape_problem(avals: Sequence[Any]) -> _Facts | None:
    if any(type(aval) is not jax_core.ShapedArray for aval in avals):
        return {"is_ref": True}
    if len(avals) > 1 and any(aval.shape for aval in avals):
        return {"shapes": [f"{aval.dtype}{list(aval.shape)}" for aval in avals]}
    return None


def _vector_problem(fmt: str, aval: Any, has_placeholders: bool) -> _Facts | None:
    if not has_placeholders or not fmt.endswith("{}"):
        return {"is_array": True}
    return {"bools": f"bool{list(aval.shape)}"} if aval.dtype == np.bool_ else None


def _scalar_problem(fmt: str, avals: Sequence[Any]) -> _Facts | None:
    try:
        fields = list(string.Formatter().parse(fmt))
    except ValueError as error:
        return {"error": error}
    if (wrong_type := _type_problem(avals)) is not None:
        return wrong_type
    for _, name, spec, conversion in fields:
        if spec or conversion:
            written = f"!{conversion}" if conversion else f":{spec}"
            return {"spec": written}
        if name:
            return {"field": name}
    wanted = sum(name is not None for _, name, _, _ in fields)
    if wanted != len(avals):
        return {"expected": plural(wanted, "argument"), "given": len(avals)}
    # jax counts a brace as a placeholder, so those behind it get the wrong argument.
    if any(name is None for _, name, _, _ in fields[:wanted]):
        return {"has_braces": True}
    return None


def _type_problem(avals: Sequence[Any]) -> _Facts | None:
    allowed = ["int32", "uint32", *(("float32",) if jaxcompat.prints_value_types() else ())]
    dtypes = (str(aval.dtype) for aval in avals)
    dtype = next((d for d in dtypes if d not in allowed), None)
    if dtype is None:
        return None
    is_integer = dtype.startswith(("int", "uint", "bool"))
    is_last = "float32" not in allowed
    return {"dtype": dtype, "allowed": allowed, "is_last": is_last, "is_integer": is_integer}


def _unformatted_problem(avals: Sequence[Any]) -> _Facts | None:
    """Check values printed without placeholders: any dtype works, except that old libtpus abort."""
    version = _libtpu()
    if version is None or version > _NEEDS_FLOATS:
        return None
    dtype = next((str(aval.dtype) for aval in avals if aval.dtype != np.float32), None)
    release = ".".join(map(str, version))
    return {"dtype": dtype, "libtpu": release} if dtype else None


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
    """Yield every print of a kernel with its line, or the line of the enclosing call."""
    jaxprs = [params["jaxpr"]] if "jaxpr" in params else list(params["jaxprs"])
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
