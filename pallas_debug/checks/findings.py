"""Findings from the failure counts of a kernel's checks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from pallas_debug.bridge.instrument import checkify_errors
from pallas_debug.bridge.instrument.observe import CheckedRun
from pallas_debug.bridge.instrument.sites import ArrayPart, SiteFailure, slice_text
from pallas_debug.findings.collector import Collector, caused
from pallas_debug.findings.several import of_one_slip
from pallas_debug.findings.sighting import Sighting
from pallas_debug.findings.wording import bounds, contents, numbers
from pallas_debug.findings.wording.facts import array_text
from pallas_debug.model import Finding, Witness


def findings(run: CheckedRun) -> tuple[Finding, ...]:
    """Build one finding per line and operand where a check failed, in order of failure."""
    kept = [failure for failure in run.failures if _matters(failure, run)]
    found = [_found(f, run) for f in kept]
    if not kept:
        found += filter(None, (_bools_read(run, name) for name in run.unwritten))
    if not found:
        parts = {**run.outputs, **run.filled} if _is_unwritten(run) else run.filled
        found += [_never_written(run, name, part) for name, part in parts.items()]
    return tuple(of_one_slip(caused(Collector(found).findings)))


def _matters(failure: SiteFailure, run: CheckedRun) -> bool:
    """Return whether a failure is a fault."""
    if failure.site.check == "nan":
        return _nan_matters(failure, run)
    return failure.site.check != "uninitialized" or _read_matters(failure, run)


def _nan_matters(failure: SiteFailure, run: CheckedRun) -> bool:
    """Return whether a NaN may have changed a result.

    It has not if no output contains a NaN, unless it went into a comparison or an integer. If
    outputs contain NaNs, a masked NaN is their origin only if there is no other.
    """
    if not run.sees_outputs:
        return True
    if not run.outputs:
        return bool(failure.site.details.get("hidden")) and not _is_masked(failure)
    origins = [f for f in run.failures if f.site.check in _OF_NAN and f.site.operation != "store"]
    others = [f for f in origins if f is not failure and not f.site.details.get("integer")]
    return not _is_masked(failure) or not (run.inputs or any(not _is_masked(f) for f in others))


def _read_matters(failure: SiteFailure, run: CheckedRun) -> bool:
    """Return whether a NaN that was read is a fault: only if it is kept and has no other origin.

    Interpreters fill memory that was never written, and the padding of a ragged last block, with
    NaN. A kernel may read this and mask it, and may even store padding into the padding of an
    output. If the inputs contain NaN, nothing is proven.
    """
    if failure.site.details["integer"]:
        # Only if the value reaches an output, which then differs with another fill value.
        same = (f for f in run.failures if f.site.details.get("integer"))
        return bool(run.filled) and failure is min(same, key=lambda f: f.order)
    if failure.site.operation == "store" or run.inputs:
        return False
    floats = [f for f in run.failures if not f.site.details.get("integer")]
    unmasked = [f for f in floats if not _is_masked(f)]
    is_read = any(f.site.check == "uninitialized" and f.site.operation != "store" for f in unmasked)
    if is_read and _is_masked(failure):
        return False  # the NaN came from elsewhere
    possible = unmasked if is_read else floats
    earlier = (f for f in possible if f.order < failure.order)
    if any(f.site.check in _OF_NAN for f in earlier):
        return False
    if run.outputs:
        return True
    # The NaN may have been overwritten since, perhaps with a wrong sum. A scratch buffer that is
    # read, masked and written back proves nothing, nor does an output.
    later = (f.site for f in floats if f.order > failure.order)
    return (
        failure.site.operation == "scratch"
        and not _is_masked(failure)
        and not _is_window(failure)
        and any(
            site.operation == "store" and site.operand != failure.site.operand for site in later
        )
    )


_OF_NAN = ("nan", "uninitialized")


def _is_window(failure: SiteFailure) -> bool:
    """Return whether a buffer is a window of `emit_pipeline`, maybe of a partial block."""
    return (failure.site.operand or "").endswith(".window_ref")


def _is_masked(failure: SiteFailure) -> bool:
    """Return whether the value passed through a `where`."""
    return bool(failure.site.details.get("masked"))


def _is_unwritten(run: CheckedRun) -> bool:
    """Return whether a NaN in an output can only be the interpreter's own fill value."""
    failed = [f for f in run.failures if not f.site.details.get("integer")]
    return not run.inputs and not any(f.site.check in _OF_NAN for f in failed)


def _bools_read(run: CheckedRun, name: str) -> Finding | None:
    """A boolean buffer whose initial values affect results, at the first line that reads it.

    Neither value of a boolean shows that it was not written, so the read itself is not observed.
    """
    of_it = [s for s in run.sites if s.check == "uninitialized" and s.operand == name]
    reads = sorted((s for s in of_it if s.operation != "store"), key=lambda site: site.step)
    if not reads:
        return None
    site = SiteFailure(site=reads[0], count=1, order=(), grid_point=(), loops=(), values=())
    return _uninitialized(_sighting(run.kernel, site), site, run)


def _never_written(run: CheckedRun, name: str, box: ArrayPart) -> Finding:
    stores = [s for s in run.sites if s.operation == "store" and s.operand == name]
    is_short = name in run.uncovered
    source = stores[0].source if stores and not is_short else run.call
    why: contents.Gone = "stores"
    if run.is_empty:
        why, source = "no points", run.call
    elif is_short:
        why = "rounded down" if run.uncovered[name] else "too few steps"
    elif not stores:
        why = "no store"
    elif all(site.details["conditional"] for site in stores):
        why = "condition"
    elif under := [site for site in stores if site.details["conditional"]]:
        why, source = "some conditions", under[-1].source
    return contents.output_not_written(
        Sighting(
            kernel=run.kernel,
            engine="checks",
            witness=Witness(
                source=source,
                operand=name,
                index=box.text,
                values={"elements": f"{box.elements} of {box.of}"},
            ),
        ),
        what=box.text,
        why=why,
        elements=(box.elements, box.of),
        is_several=box.regions > 1,
    )


def _sighting(kernel: str, failure: SiteFailure) -> Sighting:
    site = failure.site
    return Sighting(
        kernel=kernel,
        engine="checks",
        witness=Witness(
            source=site.source,
            grid_point=failure.grid_point,
            loop=tuple(itertools.takewhile(lambda count: count >= 0, failure.loops)),
            operand=site.operand,
            values=_named(failure),
        ),
        count=failure.count,
    )


def _recorded(failure: SiteFailure) -> dict[str, Any]:
    names = (name for name, _ in failure.site.values)
    return dict(zip(names, failure.values, strict=False))


def _named(failure: SiteFailure) -> dict[str, str]:
    """Values of a witness, by name: an index, a value, or the element that failed."""
    return {
        name: str(value) for name, value in _recorded(failure).items() if name in ("index", "value")
    }


def _operands(failure: SiteFailure) -> list[Any]:
    """Operands of the operation at the element that failed, if they were recorded."""
    return [value for name, value in _recorded(failure).items() if name.isdigit()]


def _element(failure: SiteFailure) -> tuple[int, ...] | None:
    """Index of the first element that failed, in the result of the operation."""
    position, shape = _recorded(failure).get("element"), failure.site.details.get("result")
    if position is None or not shape:
        return None
    return tuple(int(i) for i in np.unravel_index(position, shape))


def _ranges(failure: SiteFailure) -> list[tuple[float, float]]:
    """Smallest and largest number of each operand, if no single element is at fault."""
    known = _recorded(failure)
    return [(known[f"min{i}"], known[f"max{i}"]) for i in range(2) if f"min{i}" in known]


def _at_element(seen: Sighting, failure: SiteFailure) -> Sighting:
    """Add the element that failed, and its operands, to the witness."""
    element, values = _element(failure), _operands(failure)
    facts = dict(seen.witness.values)
    if element is not None:
        facts["element"] = str(list(element))
    if values:
        facts["operands"] = ", ".join(contents.number(value) for value in values)
    for i, (least, greatest) in enumerate(_ranges(failure)):
        facts[f"operand {i}"] = f"{contents.number(least)} to {contents.number(greatest)}"
    return seen.at(values=facts)


def _user(seen: Sighting, failure: SiteFailure) -> Finding:
    site, values = failure.site, failure.values
    message = checkify_errors.message(site, values)
    sign = site.details.get("compares")
    if sign is None:
        return contents.check_failed(seen, message=message)
    left, right = map(contents.number, values[-2:])
    condition = f"{left} {sign} {right}"
    return contents.check_failed(
        seen, message=message, condition=condition, element=_element(failure)
    )


def _not_finite(seen: Sighting, failure: SiteFailure, found: Callable[..., Finding]) -> Finding:
    site = failure.site
    return found(
        _at_element(seen, failure).at(shape=site.details["shape"]),
        operation=site.operation,
        values=_operands(failure),
        ranges=_ranges(failure),
        element=_element(failure),
        operands=site.details["operands"],
    )


def _entry(failure: SiteFailure) -> str | None:
    """Table entry from which an index was computed: `table[2], which is 9`."""
    table, known = failure.site.details.get("table"), _recorded(failure)
    if table is None:
        return None
    at = ", ".join(str(value) for name, value in known.items() if name.startswith("at"))
    return f"{table}[{at}], which is {known['entry']}"


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
            shape=f"{array_text(details['dtype'], details['shape'])}{where}",
        ),
        writes=site.operation == "write",
        dim=dim,
        start=start,
        size=size,
        bound=details["bound"],
        stride=stride,
        entry=_entry(failure),
        computed=details.get("computed"),
        is_masked=details.get("masked", False),
    )


def _block(seen: Sighting, failure: SiteFailure) -> Finding:
    site, (index, *_) = failure.site, failure.values
    details = site.details
    size, bound, dim = details["size"] or 1, details["bound"], details["dim"]
    array = array_text(details["dtype"], details["shape"])
    by_element = details["element"]
    unit = "element" if by_element else "block"
    may_be_offset = not by_element and size > 1 and index > 0
    return bounds.block_out_of_bounds(
        seen.at(index=f"{site.operand}: {unit} {index} of dimension {dim}", shape=array),
        dim=dim,
        value=index,
        first=0,
        last=details["blocks"] - 1,
        array=array,
        block_size=size,
        by_element=by_element,
        entry=_entry(failure),
        is_offset=may_be_offset and index % size == 0 and index // size < bound,
    )


def _division(seen: Sighting, failure: SiteFailure) -> Finding:
    dividend = next(iter(_operands(failure)), None)
    return numbers.division_by_zero(
        _at_element(seen, failure),
        is_float=failure.site.details["float"],
        is_remainder=failure.site.operation == "rem",
        dividend=dividend,
        element=_element(failure),
        divisor=failure.site.details["shape"],
    )


def _hint(seen: Sighting, failure: SiteFailure) -> Finding:
    (value, *_), details = failure.values, failure.site.details
    return numbers.false_hint(
        seen, value=value, divisor=details["divisor"], of_pipeline=details["of_pipeline"]
    )


def _uninitialized(seen: Sighting, failure: SiteFailure, run: CheckedRun) -> Finding:
    site, details = failure.site, failure.site.details
    shape = array_text(details["dtype"], details["shape"])
    seen = _at_element(seen, failure).at(shape=f"{shape} in {details['space'].upper()}")
    if site.operation == "input":
        return contents.padding_read(seen, side="either" if details["begins before"] else "end")
    reaches, source = bool(run.outputs or run.filled), details["copied from"]
    if source is not None:
        return contents.unwritten_copied(seen, source=source, reaches_output=reaches)
    ahead = [
        other
        for other in run.sites
        if other.operation == "store" and other.operand == site.operand and other.step < site.step
    ]
    before: contents.Before = "none"
    if ahead:
        before = "branches" if all(o.details["conditional"] for o in ahead) else "some"
    stays = bool(failure.grid_point) and not details["scoped"]
    return contents.uninitialized_read(seen, reaches_output=reaches, before=before, stays=stays)


def _found(failure: SiteFailure, run: CheckedRun) -> Finding:
    seen, check = _sighting(run.kernel, failure), failure.site.check
    if check == "uninitialized":
        return _uninitialized(seen, failure, run)
    return _FOUND[check](seen, failure)


_FOUND: dict[str, Callable[[Sighting, SiteFailure], Finding]] = {
    "user": _user,
    "nan": lambda seen, failure: _not_finite(seen, failure, contents.nan_produced),
    "inf": lambda seen, failure: _not_finite(seen, failure, contents.infinity_produced),
    "index": _index,
    "div": _division,
    "float_div": _division,
    "hint": _hint,
}
