"""What failed in a kernel, in words: `model.Finding`s of what its checks counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from pallas_debug.bridge.instrument import checkify_errors
from pallas_debug.bridge.instrument.observe import CheckedRun
from pallas_debug.bridge.instrument.sites import SiteFailure, shape_text, slice_text
from pallas_debug.model import Finding

ENGINE = "checks"


def findings(run: CheckedRun) -> tuple[Finding, ...]:
    """One for each line and operand at which a check failed, the first to fail first."""
    kept = [failure for failure in run.failures if _matters(failure, run)]
    found = [_WORDS[failure.site.check](run.kernel, failure) for failure in kept]
    if not kept:
        found += [_never_written(run, name) for name in run.outputs if _is_unwritten(run)]
    return tuple(merged(found))


def merged(found: Iterable[Finding]) -> list[Finding]:
    """The same fault at the same line once, with the sum of its counts.

    One line of Python is often several operations: `a // b` is a division and a remainder. The
    largest count of a line is that of its executions, so it is not added to within one launch.
    """
    by_place: dict[tuple[object, ...], Finding] = {}
    for finding in found:
        line = finding.source and (finding.source.file, finding.source.line)
        key = (finding.kind, finding.kernel, line, finding.operand, finding.index)
        known = by_place.get(key)
        if known is None:
            by_place[key] = finding
        elif finding.count > known.count:
            by_place[key] = replace(known, count=finding.count)
    return list(by_place.values())


def _matters(failure: SiteFailure, run: CheckedRun) -> bool:
    """A NaN that was read is a fault only where it is kept and comes of nothing else.

    Interpreters fill what was never written, and the padding of a ragged last block, with NaN. A
    kernel may well read it and mask it, and padding it may even keep, in the padding of an output.
    Inputs that hold NaN themselves prove nothing.
    """
    if failure.site.check != "uninitialized":
        return True
    if failure.site.operation == "store" or run.inputs:
        return False
    unmasked = [f for f in run.failures if not _is_masked(f)]
    is_read = any(f.site.check == "uninitialized" and f.site.operation != "store" for f in unmasked)
    if is_read and _is_masked(failure):
        return False  # what shows came from elsewhere
    possible = unmasked if is_read else run.failures
    earlier = (f for f in possible if f.order < failure.order)
    if any(f.site.check in ("nan", "uninitialized") for f in earlier):
        return False
    if run.outputs:
        return True
    # What is left of it at the end may have been overwritten, with a wrong sum perhaps. A scratch
    # buffer that is read, masked and written back proves nothing, nor does an output.
    later = (f.site for f in run.failures if f.order > failure.order)
    return failure.site.operation == "scratch" and any(
        site.operation == "store" and site.operand != failure.site.operand for site in later
    )


def _is_masked(failure: SiteFailure) -> bool:
    """Whether what was read of an input went through a `where`."""
    return bool(failure.site.details.get("masked"))


def _is_unwritten(run: CheckedRun) -> bool:
    """Whether a NaN in an output can only be what the interpreter put there."""
    sources = ("nan", "uninitialized")
    return not run.inputs and not any(f.site.check in sources for f in run.failures)


def _never_written(run: CheckedRun, name: str) -> Finding:
    stores = [s for s in run.sites if s.operation == "store" and s.operand == name]
    finding = Finding(
        kind="OutputNotWritten",
        kernel=run.kernel,
        message=f"{run.outputs[name]} was never written, and holds what was there before",
        operand=name,
        index=run.outputs[name],
        source=stores[0].source if stores else run.call,
        cause="the store stands under a condition that is false at some grid points",
        advice=f"write {name} at every grid point, or give it an input by input_output_aliases",
        engine=ENGINE,
    )
    if name not in run.uncovered:
        return finding
    return replace(
        finding,
        source=run.call,
        cause="the grid has too few steps for the array: a size was rounded down",
        advice="use pl.cdiv(size, block) steps; the last block may reach past the end",
    )


def _base(kernel: str, failure: SiteFailure, kind: str, message: str) -> Finding:
    names = [name for name, _ in failure.site.values]
    return Finding(
        kind=kind,
        kernel=kernel,
        message=message,
        source=failure.site.source,
        grid_point=failure.grid_point,
        loop=failure.loops,
        operand=failure.site.operand,
        count=failure.count,
        values={n: str(v) for n, v in zip(names, failure.values, strict=False) if not n.isdigit()},
        engine=ENGINE,
    )


def _user(kernel: str, failure: SiteFailure) -> Finding:
    message = checkify_errors.message(failure.site, failure.values)
    finding = _base(kernel, failure, "CheckFailed", message)
    return replace(finding, advice="the condition of this check is false here; see its values")


def _nan(kernel: str, failure: SiteFailure) -> Finding:
    site = failure.site
    operands = ", ".join(site.details["operands"])
    given = [f"{value:g}" for value in failure.values]
    values = f" of {' and '.join(given)}" if given else f" of operands {operands}"
    message = (
        f"`{site.operation}` made a NaN{values}, which held none; result {site.details['shape']}"
    )
    cause, advice = _NAN_CAUSES.get(site.operation, _NAN_CAUSES["other"])
    return replace(
        _base(kernel, failure, "NanProduced", message),
        cause=cause,
        advice=advice,
        shape=site.details["shape"],
    )


def _infinity(kernel: str, failure: SiteFailure) -> Finding:
    site = failure.site
    given = [f"{value:g}" for value in failure.values]
    of = " and ".join(given) if given else "operands " + ", ".join(site.details["operands"])
    message = f"`{site.operation}` made an infinity of {of}; result {site.details['shape']}"
    return replace(
        _base(kernel, failure, "InfinityProduced", message),
        shape=site.details["shape"],
        cause="the result is larger than its dtype can hold",
        advice="subtract the maximum before exp, scale the operands, or use a wider dtype",
    )


_NAN_CAUSES = {
    "sub": (
        "infinity minus infinity: often the maximum of a row that is masked with -inf throughout",
        "mask with a large finite number, or replace the maximum where it is -inf",
    ),
    "add": (
        "infinity plus minus infinity",
        "find where the infinities come from, or mask with a large finite number",
    ),
    "div": (
        "0 / 0 or inf / inf: often a sum of weights that is zero for a row with nothing visible",
        "divide by jnp.where(l == 0, 1, l)",
    ),
    "mul": ("0 times infinity", "mask the infinite factor before the product, not after it"),
    "log": ("the logarithm of a negative number", "clamp the operand, jnp.maximum(x, 0)"),
    "sqrt": ("the square root of a negative number", "clamp the operand, jnp.maximum(x, 0)"),
    "rsqrt": ("the square root of a negative number", "add an epsilon below the root"),
    "dot_general": (
        "an infinity times zero, or infinities of both signs in one sum",
        "look for infinities in its operands; a weight of 0 does not hide one",
    ),
    "other": ("the operation has no finite value for these operands", "look at its operands"),
}


def _index(kernel: str, failure: SiteFailure) -> Finding:
    if failure.site.operation == "block":
        return _block(kernel, failure)
    site, (start, *_) = failure.site, failure.values
    details = site.details
    size, bound, dim = details["size"], details["bound"], details["dim"]
    stride = details.get("stride", 1)
    name = (site.operand or "the array") + details.get("view", "")
    dims = list(details["dims"])
    dims[dim] = slice_text(start, size, stride) if size is not None else f"{start}"
    index = f"{name}[{', '.join(dims)}]"
    last = bound - 1 - ((size or 1) - 1) * stride
    where = f" in {details['space'].upper()}" if details["space"] else ""
    shape = f"{shape_text(details['dtype'], details['shape'])}{where}"
    if start < 0:
        how = f"begins {-start} before the start"
    else:
        how = f"reaches {start - last} past the end"
    verb = "Write" if site.operation == "write" else "Read"
    largest = f"{bound} - {bound - last}" if size not in (None, 1) else f"{bound - 1}"
    return replace(
        _base(
            kernel, failure, f"OutOfBounds{verb}", f"{index} {how} of dimension {dim} of {shape}"
        ),
        index=index,
        shape=shape,
        cause="the index is not bounded by the shape of the ref, which is that of one block",
        advice=f"keep the index between 0 and {largest}, or pad the array",
    )


def _block(kernel: str, failure: SiteFailure) -> Finding:
    site, (index, *_) = failure.site, failure.values
    details = site.details
    dim, size, bound = details["dim"], details["size"], details["bound"]
    array = shape_text(details["dtype"], details["shape"])
    unit = "element" if details["element"] or size is None else "block"
    message = (
        f"the index map of {site.operand} gives {unit} {index} along dimension {dim} of {array}, "
        f"which has {details['blocks']}"
    )
    cause = "the grid is larger than the array has blocks, or the index map is wrong"
    advice = f"return a value between 0 and {details['blocks'] - 1}"
    if unit == "block" and size > 1 and index > 0 and index % size == 0 and index // size < bound:
        cause = (
            "an index map gives block numbers, and this looks like an element offset: "
            f"{index} is {index // size} x {size}"
        )
        advice += f", as `i` rather than `i * {size}`"
    return replace(
        _base(kernel, failure, "BlockOutOfBounds", message),
        index=f"{site.operand}: {unit} {index} of dimension {dim}",
        shape=array,
        cause=cause,
        advice=advice,
    )


def _division(kernel: str, failure: SiteFailure) -> Finding:
    what = "remainder" if failure.site.operation == "rem" else "division"
    of = f" of {failure.values[0]}" if failure.values else ""
    shape = failure.site.details["shape"]
    kind = "float" if failure.site.details["float"] else "integer"
    return replace(
        _base(kernel, failure, "DivisionByZero", f"{kind} {what}{of} by zero; divisor {shape}"),
        cause="the divisor is zero here; the result is undefined, and differs between chips",
        advice="guard it: jnp.where(d == 0, 1, d)",
    )


def _hint(kernel: str, failure: SiteFailure) -> Finding:
    (value, *_), divisor = failure.values, failure.site.details["divisor"]
    return replace(
        _base(kernel, failure, "FalseHint", f"{value} is not a multiple of {divisor}"),
        cause="the compiler believes pl.multiple_of and reads or writes at another place",
        advice=f"make the value a multiple of {divisor}, or claim {math.gcd(value, divisor)}",
    )


def _uninitialized(kernel: str, failure: SiteFailure) -> Finding:
    site = failure.site
    space = site.details["space"].upper()
    shape = f"{shape_text(site.details['dtype'], site.details['shape'])} in {space}"
    finding = replace(
        _base(kernel, failure, "UninitializedRead", ""), operand=site.operand, shape=shape
    )
    if site.operation == "input":
        return replace(
            finding,
            kind="PaddingRead",
            message=f"padding of {site.operand}, {shape}, is read and reaches an output",
            cause="the last block reaches past the array's end, and what is there is undefined",
            advice="mask what lies past the end, or pad the array to whole blocks",
        )
    return replace(
        finding,
        message=f"{site.operand}, {shape}, is read before it was written, and that reaches an "
        "output",
        cause="scratch buffers and outputs hold whatever was there before",
        advice="write it at the first grid point: @pl.when(pl.program_id(axis) == 0)",
    )


_WORDS: dict[str, Callable[[str, SiteFailure], Finding]] = {
    "user": _user,
    "nan": _nan,
    "inf": _infinity,
    "index": _index,
    "div": _division,
    "float_div": _division,
    "hint": _hint,
    "uninitialized": _uninitialized,
}
