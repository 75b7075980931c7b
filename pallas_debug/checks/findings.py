"""Findings from the failure counts of a kernel's checks."""

from __future__ import annotations

from collections.abc import Callable

from pallas_debug.bridge.instrument import checkify_errors
from pallas_debug.bridge.instrument.observe import CheckedRun
from pallas_debug.bridge.instrument.sites import SiteFailure, shape_text, slice_text
from pallas_debug.findings.collector import Collector
from pallas_debug.findings.sighting import Sighting
from pallas_debug.findings.wording import bounds, contents
from pallas_debug.model import Finding, Witness


def findings(run: CheckedRun) -> tuple[Finding, ...]:
    """Build one finding per line and operand where a check failed, in order of failure."""
    kept = [failure for failure in run.failures if _matters(failure, run)]
    found = [_FOUND[f.site.check](_sighting(run.kernel, f), f) for f in kept]
    if not kept:
        found += [_never_written(run, name) for name in run.outputs if _is_unwritten(run)]
    return Collector(found).findings


def _matters(failure: SiteFailure, run: CheckedRun) -> bool:
    """Whether a failure is a fault. A NaN read counts only if it is kept and has no other origin.

    Interpreters fill memory that was never written, and the padding of a ragged last block, with
    NaN. A kernel may well read this and mask it, and may even store padding into the padding of an
    output. If inputs contain NaN themselves, nothing is proven.
    """
    if failure.site.check != "uninitialized":
        return True
    if failure.site.operation == "store" or run.inputs:
        return False
    unmasked = [f for f in run.failures if not _is_masked(f)]
    is_read = any(f.site.check == "uninitialized" and f.site.operation != "store" for f in unmasked)
    if is_read and _is_masked(failure):
        return False  # the NaN seen came from elsewhere
    possible = unmasked if is_read else run.failures
    earlier = (f for f in possible if f.order < failure.order)
    if any(f.site.check in ("nan", "uninitialized") for f in earlier):
        return False
    if run.outputs:
        return True
    # The NaN may have been overwritten since, perhaps with a wrong sum. A scratch buffer that is
    # read, masked and written back proves nothing, nor does an output.
    later = (f.site for f in run.failures if f.order > failure.order)
    return failure.site.operation == "scratch" and any(
        site.operation == "store" and site.operand != failure.site.operand for site in later
    )


def _is_masked(failure: SiteFailure) -> bool:
    """Whether the value read from an input passed through a `where`."""
    return bool(failure.site.details.get("masked"))


def _is_unwritten(run: CheckedRun) -> bool:
    """Whether a NaN in an output can only be the interpreter's own fill value."""
    sources = ("nan", "uninitialized")
    return not run.inputs and not any(f.site.check in sources for f in run.failures)


def _never_written(run: CheckedRun, name: str) -> Finding:
    stores = [s for s in run.sites if s.operation == "store" and s.operand == name]
    is_short = name in run.uncovered
    source = stores[0].source if stores and not is_short else run.call
    what = run.outputs[name]
    return contents.output_not_written(
        Sighting(
            kernel=run.kernel,
            engine="checks",
            witness=Witness(source=source, operand=name, index=what),
        ),
        what=what,
        why="rounded down" if is_short else "condition" if stores else "no store",
    )


def _sighting(kernel: str, failure: SiteFailure) -> Sighting:
    names = [name for name, _ in failure.site.values]
    return Sighting(
        kernel=kernel,
        engine="checks",
        witness=Witness(
            source=failure.site.source,
            grid_point=failure.grid_point,
            loop=failure.loops,
            operand=failure.site.operand,
            values={
                n: str(v) for n, v in zip(names, failure.values, strict=False) if not n.isdigit()
            },
        ),
        count=failure.count,
    )


def _user(seen: Sighting, failure: SiteFailure) -> Finding:
    said = checkify_errors.message(failure.site, failure.values)
    return contents.check_failed(seen, said=said)


def _nan(seen: Sighting, failure: SiteFailure) -> Finding:
    site = failure.site
    return contents.nan_produced(
        seen.at(shape=site.details["shape"]),
        operation=site.operation,
        values=failure.values,
        operands=site.details["operands"],
    )


def _infinity(seen: Sighting, failure: SiteFailure) -> Finding:
    site = failure.site
    return contents.infinity_produced(
        seen.at(shape=site.details["shape"]),
        operation=site.operation,
        values=failure.values,
        operands=site.details["operands"],
    )


def _index(seen: Sighting, failure: SiteFailure) -> Finding:
    if failure.site.operation == "block":
        return _block(seen, failure)
    site, (start, *_) = failure.site, failure.values
    details = site.details
    size, dim, stride = details["size"], details["dim"], details.get("stride", 1)
    name = (site.operand or "the array") + details.get("view", "")
    dims = list(details["dims"])
    dims[dim] = slice_text(start, size, stride) if size is not None else f"{start}"
    where = f" in {details['space'].upper()}" if details["space"] else ""
    return bounds.out_of_bounds(
        seen.at(
            index=f"{name}[{', '.join(dims)}]",
            shape=f"{shape_text(details['dtype'], details['shape'])}{where}",
        ),
        writes=site.operation == "write",
        dim=dim,
        start=start,
        size=size,
        bound=details["bound"],
        stride=stride,
    )


def _block(seen: Sighting, failure: SiteFailure) -> Finding:
    site, (index, *_) = failure.site, failure.values
    details = site.details
    size, bound, dim = details["size"], details["bound"], details["dim"]
    array = shape_text(details["dtype"], details["shape"])
    by_element = details["element"] or size is None
    unit = "element" if by_element else "block"
    may_be_offset = not by_element and size > 1 and index > 0
    return bounds.block_out_of_bounds(
        seen.at(index=f"{site.operand}: {unit} {index} of dimension {dim}", shape=array),
        dim=dim,
        value=index,
        first=0,
        last=details["blocks"] - 1,
        array=array,
        block_size=size or 1,
        by_element=by_element,
        is_offset=may_be_offset and index % size == 0 and index // size < bound,
    )


def _division(seen: Sighting, failure: SiteFailure) -> Finding:
    return contents.division_by_zero(
        seen,
        is_float=failure.site.details["float"],
        is_remainder=failure.site.operation == "rem",
        dividend=failure.values[0] if failure.values else None,
        divisor=failure.site.details["shape"],
    )


def _hint(seen: Sighting, failure: SiteFailure) -> Finding:
    (value, *_), divisor = failure.values, failure.site.details["divisor"]
    return contents.false_hint(seen, value=value, divisor=divisor)


def _uninitialized(seen: Sighting, failure: SiteFailure) -> Finding:
    details = failure.site.details
    shape = shape_text(details["dtype"], details["shape"])
    seen = seen.at(shape=f"{shape} in {details['space'].upper()}")
    if failure.site.operation == "input":
        return contents.padding_read(seen)
    return contents.uninitialized_read(seen, reaches_output=True)


_FOUND: dict[str, Callable[[Sighting, SiteFailure], Finding]] = {
    "user": _user,
    "nan": _nan,
    "inf": _infinity,
    "index": _index,
    "div": _division,
    "float_div": _division,
    "hint": _hint,
    "uninitialized": _uninitialized,
}
