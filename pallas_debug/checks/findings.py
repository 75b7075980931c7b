"""Findings from the failures that the checks inserted into a kernel have recorded."""

from __future__ import annotations

from collections.abc import Callable

from pallas_debug.bridge.instrument import checkify_errors
from pallas_debug.bridge.instrument.observe import CheckedRun
from pallas_debug.bridge.instrument.sites import SiteFailure
from pallas_debug.findings.bounds import MissingBlock, Outside
from pallas_debug.findings.facts import array_text, number
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.numbers import FloatOperation
from pallas_debug.findings.regions import slice_text
from pallas_debug.findings.sighting import Sighting
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
            operand=site.operand,
            values={
                name: str(value) for name, value in recorded.items() if name in ("index", "value")
            },
        ),
        count=failure.count,
    )


def _user(seen: Sighting, failure: SiteFailure) -> Finding:
    return seen.of(
        Fault.CHECK_FAILED, message=checkify_errors.message(failure.site, failure.values)
    )


def _not_finite(seen: Sighting, failure: SiteFailure) -> Finding:
    site = failure.site
    if failure.values:
        seen = seen.with_values({"operands": ", ".join(map(number, failure.values))})
    return seen.at(shape=site.details["shape"]).of(
        Fault.NAN_PRODUCED if site.check == "nan" else Fault.INFINITY_PRODUCED,
        operation=FloatOperation(
            name=site.operation,
            result=site.details["shape"],
            values=failure.values,
            operands=site.details["operands"],
        ),
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
    return seen.at(
        index=f"{name}[{', '.join(dims)}]",
        shape=f"{array_text(details['dtype'], details['shape'])}{where}",
    ).of(
        Fault.OUT_OF_BOUNDS_WRITE if site.operation == "write" else Fault.OUT_OF_BOUNDS_READ,
        slice=Outside(dim=dim, start=start, size=size, bound=details["bound"], stride=stride),
    )


def _block(seen: Sighting, failure: SiteFailure) -> Finding:
    site, (index, *_) = failure.site, failure.values
    details = site.details
    array = array_text(details["dtype"], details["shape"])
    block = MissingBlock(
        dim=details["dim"],
        value=index,
        last=details["blocks"] - 1,
        is_element=details["element"],
    )
    return seen.at(
        index=f"{site.operand}: {block.unit} {index} of dimension {block.dim}", shape=array
    ).of(Fault.BLOCK_OUT_OF_BOUNDS, block=block, array=array)


def _division(seen: Sighting, failure: SiteFailure) -> Finding:
    is_float = failure.site.details["float"]
    return seen.of(
        Fault.DIVISION_BY_ZERO,
        dtype="float" if is_float else "integer",
        is_integer=not is_float,
        operation="remainder" if failure.site.operation == "rem" else "division",
        dividend=next(iter(failure.values), None),
        divisor=failure.site.details["shape"],
    )


def _hint(seen: Sighting, failure: SiteFailure) -> Finding:
    (value, *_), details = failure.values, failure.site.details
    return seen.of(
        Fault.FALSE_HINT,
        value=value,
        divisor=details["divisor"],
        of_pipeline=details["of_pipeline"],
    )


_FOUND: dict[str, Callable[[Sighting, SiteFailure], Finding]] = {
    "user": _user,
    "nan": _not_finite,
    "inf": _not_finite,
    "index": _index,
    "div": _division,
    "hint": _hint,
}
