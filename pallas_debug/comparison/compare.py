"""Comparison of two results, with a finding for each output that differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pallas_debug import guards
from pallas_debug.bridge.jaxprs import arrays
from pallas_debug.bridge.jaxprs.params import float_dtypes
from pallas_debug.bridge.walk import origins
from pallas_debug.bridge.walk.origins import KernelOrigin
from pallas_debug.comparison import chain, patterns, tolerances
from pallas_debug.comparison.compared import ComparedCall
from pallas_debug.comparison.differences import Differences, Leaf, text, unravel
from pallas_debug.errors import InvalidReference, PallasDebugError, UsageError
from pallas_debug.findings.facts import array_text
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.mismatch import WriterChain
from pallas_debug.findings.sighting import Sighting
from pallas_debug.model import Finding, Gap, Witness


@dataclass(frozen=True, kw_only=True)
class ComparedOutput:
    """Outcome of the comparison of one array of a result.

    Attributes:
      name: `output`, or `output [1]` with its path in jax's notation.
      dtype: of the function's array.
      differing: number of elements that differ by more than the tolerance.
      unjudged: number of elements that are NaN in the reference.
      allowed: the tolerance as text; empty if elements must be equal.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    elements: int
    differing: int
    unjudged: int
    allowed: str


@dataclass(frozen=True, kw_only=True)
class Results:
    """Outcome of a comparison.

    Attributes:
      findings: one for each output that differs.
      kernels: by finding, digest of the kernel that directly produces its output, or None.
      gaps: elements that could not be compared.
      problems: our own errors, which left something out of a finding.
      notes: remarks on outputs of which the reference has a wider dtype.
      left_out: what could not be compared as on a TPU, and why; empty if everything was.
    """

    outputs: tuple[ComparedOutput, ...]
    findings: tuple[Finding, ...] = ()
    kernels: tuple[str | None, ...] = ()
    gaps: tuple[Gap, ...] = ()
    problems: tuple[PallasDebugError, ...] = ()
    notes: tuple[str, ...] = ()
    left_out: str = ""


def leaves(result: Any, whose: str) -> list[Leaf]:
    """Arrays of a result.

    Args:
      whose: name of the function that returned the result.

    Raises:
      UsageError: the result contains something that is not an array, or no arrays at all.
    """
    found = []
    for path, dtype, array in arrays.host_leaves(result):
        if not dtype:
            raise UsageError(
                f"{whose} returns {output_name(path)} of type {type(array).__name__}: only arrays "
                "and numbers can be compared"
            )
        found.append(Leaf(path=path, dtype=dtype, values=array))
    if not found:
        raise UsageError(f"{whose} returns no arrays: there is nothing to compare")
    return found


def output_name(path: str) -> str:
    """Name of an output in messages, by its path in jax's notation."""
    return f"output {path}" if path else "output"


def check_alike(
    ours: Sequence[Leaf], theirs: Sequence[Leaf], compared: ComparedCall
) -> tuple[str, ...]:
    """Check that two results have the same arrays, apart from wider dtypes of the reference.

    Returns:
      A remark on each array of which the reference has a wider dtype.

    Raises:
      InvalidReference: the arrays differ; the message shows both.
    """
    name, reference = f"`{compared.name}`", f"`{compared.reference}`"
    if [one.path for one in ours] != [one.path for one in theirs]:
        raise InvalidReference(
            f"{name} returns {_several(ours)}, but {reference} returns {_several(theirs)}: both "
            "must return the same structure"
        )
    notes = []
    for a, b in zip(ours, theirs, strict=True):
        both = f"{output_name(a.path)} is {a} from {name} and {b} from {reference}"
        if a.shape != b.shape:
            raise InvalidReference(f"{both}: both must have the same shape")
        if a.dtype == b.dtype:
            continue
        if not tolerances.is_wider(b.dtype, a.dtype):
            raise InvalidReference(
                f"{both}: the reference must have the same dtype or a wider one of its kind; "
                "convert one of the results"
            )
        notes.append(f"{both}: compared to the precision of {a.dtype}")
    return tuple(notes)


def _several(found: Sequence[Leaf]) -> str:
    parts = [f"{one.path} {one}".strip() for one in found[:8]]
    more = f" and {len(found) - 8} more" if len(found) > 8 else ""
    return f"{len(found)} arrays ({', '.join(parts)}{more})" if len(found) > 1 else str(parts[0])


def compare(compared: ComparedCall, result: Any, expected: Any) -> Results:
    """Compare the results of a function and its reference for the same arguments.

    Raises:
      UsageError: a result contains something that is not an array.
      InvalidReference: the results differ in structure, shapes or dtypes.
    """
    ours, theirs = leaves(result, compared.name), leaves(expected, compared.reference)
    notes = check_alike(ours, theirs, compared)
    pairs = [Differences(a, b, compared.tolerance) for a, b in zip(ours, theirs, strict=True)]
    outputs, gaps = [], []
    for pair in pairs:
        unjudged = int(pair.unjudged.sum())
        outputs.append(
            ComparedOutput(
                name=output_name(pair.actual.path),
                dtype=pair.actual.dtype,
                shape=pair.actual.shape,
                elements=pair.bad.size,
                differing=pair.count,
                unjudged=unjudged,
                allowed="" if pair.allowed is None else str(pair.allowed),
            )
        )
        if unjudged:
            gaps.append(_reference_nan(pair, compared))
    problems: list[PallasDebugError] = []
    sources = [KernelOrigin(reason=UNTRACED)] * len(pairs)
    if any(pair.count for pair in pairs):
        given = compared.function, compared.args, compared.kwargs, compared.target
        with guards.guarded("engine", "looking for the kernels behind a result", problems.append):
            sources = origins.origins(*given)
    found = [
        _finding(pair, compared, origin, problems)
        for pair, origin in zip(pairs, sources, strict=True)
        if pair.count
    ]
    return Results(
        outputs=tuple(outputs),
        findings=tuple(finding for finding, _ in found),
        kernels=tuple(digest for _, digest in found),
        gaps=tuple(gaps),
        problems=tuple(problems),
        notes=notes,
    )


def _reference_nan(pair: Differences, compared: ComparedCall) -> Gap:
    both = int((pair.unjudged & np.isnan(pair.actual.wide)).sum())
    count = int(pair.unjudged.sum())
    first = _place(unravel(int(np.argmax(pair.unjudged)), pair.unjudged.shape))
    also = "all" if both == count else f"{both:,}" if both else "none"
    reason = (
        f"{output_name(pair.actual.path)}, {pair.expected}: `{compared.reference}` is NaN at "
        f"{count:,} of {pair.unjudged.size:,} elements, first at {first}, and the function is NaN "
        f"at {also} of these: they were not judged. Is the reference correct and defined for these "
        "arguments?"
    )
    return Gap(kernel="", engine="values", reason=reason, is_limit=True, is_partial=True)


def _place(element: Sequence[int]) -> str:
    """Format an element's index: `[3, 0]`, or `the scalar`."""
    return str([*element]) if element else "the scalar"


UNTRACED = "the function could not be traced once more"


def _finding(
    pair: Differences,
    compared: ComparedCall,
    origin: KernelOrigin,
    problems: list[PallasDebugError],
) -> tuple[Finding, str | None]:
    what, element = output_name(pair.actual.path), pair.first
    seen = Sighting(kernel=compared.name, engine="reference", witness=Witness(operand=what))
    found, digest = WriterChain(unknown=origin.reason), None
    if origin.captured is not None:
        kernel = origin.captured.kernel
        operand = kernel.of_kind("output")[origin.output]
        what, digest = f"{what} ({operand.name})", kernel.digest
        array = array_text(operand.dtype, operand.shape)
        witness = Witness(source=kernel.source, operand=operand.name, shape=array)
        seen = Sighting(kernel=kernel.name, engine="reference", witness=witness)
        bad = _of_kernel(origin, pair.bad, operand.shape)
        found = WriterChain(unknown="the elements that differ do not come from the kernel")
        if bad.any():
            with guards.guarded("engine", "looking for what wrote an element", problems.append):
                found = chain.find(compared, origin, bad)
        if not found.unknown:
            element = _of_result(origin, found.element, operand.shape, pair.bad) or element
    facts = {
        "element": _place(element),
        "value": text(pair.actual, element),
        "expected": text(pair.expected, element),
    }
    absolute, relative = pair.largest_absolute()[0], pair.largest_relative()
    pattern = patterns.pattern(pair.actual.wide, pair.bad)
    values = {
        **facts,
        "differing": f"{pair.count} of {pair.bad.size}",
        "largest absolute error": absolute,
        **({} if relative is None else {"largest relative error": relative}),
        "pattern": str(pattern),
    }
    finding = (
        seen.at(**found.witness)
        .with_values(values)
        .of(
            Fault.VALUE_MISMATCH,
            **facts,
            what=what,
            several=pair.actual.path and what,
            array=pair.actual,
            reference=compared.reference,
            count=pair.count,
            total=pair.bad.size,
            absolute=absolute,
            relative=relative,
            allowed=pair.allowed or "none, since these are not floats",
            pattern=str(pattern),
            special=pattern.special,
            unjudged=int(pair.unjudged.sum()) or None,
            chain=found,
            because=found.cause,
            rounding=_rounding(pair, compared, origin),
        )
    )
    return replace(finding, chain=found.links), digest


def _rounding(pair: Differences, compared: ComparedCall, origin: KernelOrigin) -> str | None:
    """The largest error, in units of the least precise dtype, if rounding alone explains it."""
    if not (pair.actual.is_inexact and pair.expected.is_inexact):
        return None
    a, b = pair.actual.wide, pair.expected.wide
    size = float(np.abs(b).max())
    if not (np.isfinite(a).all() and np.isfinite(b).all()) or not size:
        return None
    dtypes = {pair.actual.dtype, pair.expected.dtype}
    if origin.captured is not None:
        given = {dtype for _, dtype, _ in arrays.host_leaves((compared.args, compared.kwargs))}
        dtypes |= float_dtypes(origin.captured.params, given)
    dtype = max(sorted(dtypes), key=tolerances.unit)
    units = float(np.abs(a - b).max()) / (tolerances.unit(dtype) * size)
    most = tolerances.most_units(dtype)
    return f"{units:.2g} units of {dtype} rounding, of at most {most}" if units <= most else None


def _of_kernel(origin: KernelOrigin, bad: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Map a mask over a result to a mask over the kernel's output."""
    if origin.numbers is None:
        return bad.reshape(shape)
    found = np.zeros(int(np.prod(shape)), bool)
    numbers = origin.numbers[bad]
    found[numbers[numbers >= 0]] = True
    return found.reshape(shape)


def _of_result(
    origin: KernelOrigin, element: tuple[int, ...], shape: tuple[int, ...], bad: np.ndarray
) -> tuple[int, ...] | None:
    """Return the differing element of the result that comes from this element of the kernel."""
    if origin.numbers is None:
        return element
    number = int(np.ravel_multi_index(element, shape)) if shape else 0
    found = np.argwhere((origin.numbers == number) & bad)
    return tuple(int(i) for i in found[0]) if len(found) else None
