"""Findings from the failures that the checks inserted into a kernel have recorded."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from pallas_debug.bridge.instrument import checkify_errors
from pallas_debug.bridge.instrument.observe import CheckedRun
from pallas_debug.bridge.instrument.sites import SiteFailure, slice_text
from pallas_debug.findings.facts import array_text
from pallas_debug.findings.sighting import Sighting
from pallas_debug.findings.wording import bounds, contents, numbers
from pallas_debug.model import Finding, Witness


def findings(run: CheckedRun) -> tuple[Finding, ...]:
    """Build a finding per site where a check failed, in order of first failure."""
    return tuple(
        _FOUND[failure.site.check](_sighting(run.kernel, failure), failure)
        for failure in run.failures
    )


def _sighting(kernel: str, failure: SiteFailure) -> Sighting:
    site = failure.site
    names = (name for name, _ in site.values)
    recorded = dict(zip(names, failure.values, strict=False))
    return Sighting(
        kernel=kernel,
        engine="checks",
        witness=Witness(
            source=site.source,
            grid_point=failure.grid_point,
            loop=tuple(itertools.takewhile(lambda count: count >= 0, failure.loops)),
            operand=site.operand,
            values={
                name: str(value) for name, value in recorded.items() if name in ("index", "value")
            },
        ),
        count=failure.count,
    )


def _user(seen: Sighting, failure: SiteFailure) -> Finding:
    message = checkify_errors.message(failure.site, failure.values)
    return contents.check_failed(seen, message=message)


def _not_finite(seen: Sighting, failure: SiteFailure, found: Callable[..., Finding]) -> Finding:
    site = failure.site
    if failure.values:
        operands = ", ".join(map(contents.number, failure.values))
        seen = seen.at(values={**seen.witness.values, "operands": operands})
    return found(
        seen.at(shape=site.details["shape"]),
        operation=site.operation,
        values=list(failure.values),
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
            shape=f"{array_text(details['dtype'], details['shape'])}{where}",
        ),
        writes=site.operation == "write",
        dim=dim,
        start=start,
        size=size,
        bound=details["bound"],
        stride=stride,
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
        is_offset=may_be_offset and index % size == 0 and index // size < bound,
    )


def _division(seen: Sighting, failure: SiteFailure) -> Finding:
    dividend: Any = next(iter(failure.values), None)
    return numbers.division_by_zero(
        seen,
        is_float=failure.site.details["float"],
        is_remainder=failure.site.operation == "rem",
        dividend=dividend,
        element=None,
        divisor=failure.site.details["shape"],
    )


def _hint(seen: Sighting, failure: SiteFailure) -> Finding:
    (value, *_), details = failure.values, failure.site.details
    return numbers.false_hint(
        seen, value=value, divisor=details["divisor"], of_pipeline=details["of_pipeline"]
    )


_FOUND: dict[str, Callable[[Sighting, SiteFailure], Finding]] = {
    "user": _user,
    "nan": lambda seen, failure: _not_finite(seen, failure, contents.nan_produced),
    "inf": lambda seen, failure: _not_finite(seen, failure, contents.infinity_produced),
    "index": _index,
    "div": _division,
    "hint": _hint,
}
