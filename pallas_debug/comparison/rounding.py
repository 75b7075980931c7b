"""Comparison of a function with its reference, with products rounded as on a TPU.

At default precision, a TPU rounds the float32 operands of a product to bfloat16. A kernel that
agrees with its reference in float32 may then be far off: prefix sums by a triangular matrix of
ones, indices picked by a one-hot matrix, exponents. If the reference itself is as far off with
rounded products, or with rounded arguments if jax cannot trace it, the problem is ill-conditioned,
and nothing is reported about the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pallas_debug.bridge import chip, platform
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.hosted import lowering as hosted
from pallas_debug.bridge.jaxprs import bfloat16_products
from pallas_debug.bridge.jaxprs.bfloat16_products import ProductSite
from pallas_debug.bridge.lowering import hook, raised
from pallas_debug.comparison import reference
from pallas_debug.comparison.compare import Results, leaves, output_name
from pallas_debug.comparison.compare import compare as compare_exactly
from pallas_debug.comparison.compared import ComparedCall
from pallas_debug.comparison.differences import Differences, Leaf, text
from pallas_debug.comparison.tolerances import DEFAULTS, Tolerance
from pallas_debug.findings.facts import line_text
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.sighting import Sighting
from pallas_debug.machine.host import MachineHost, Unobserved
from pallas_debug.machine.pace import Pace
from pallas_debug.model import Finding, Witness

PRODUCTS = "its float32 products as a TPU computes them, with operands rounded to bfloat16"
NOT_ROUNDED = f"{PRODUCTS}: with those, the function stops"
"""Reason for a gap in the judgement of values."""


def compare(
    compared: ComparedCall,
    captures: Iterable[Capture],
    result: Any,
    expected: Any,
    pace: Pace | None = None,
) -> Results:
    """Compare the results of a function and its reference, also as a TPU computes products.

    If the results agree, the function is run again with rounded products.

    Args:
      captures: kernels that the function calls.
      pace: progress and budget of the kernels.

    Raises:
      UsageError, InvalidReference: as for `compare.compare`.
    """
    results = compare_exactly(compared, result, expected)
    sites = {
        site: c.kernel.digest for c in captures for site in bfloat16_products.sites_in(c.params)
    }
    if results.findings or not sites or platform.has_accelerator():  # which has rounded itself
        return results
    rounded, function, other = bfloat16_products.rounded, compared.function, compared.other
    differing = partial(_differing, compared, leaves(expected, compared.reference), pace)
    try:
        if not (found := differing(rounded(function))):
            return results
        try:
            of_reference = differing(rounded(other, everywhere=True))
        except Exception:  # noqa: BLE001 - one that computes with numpy cannot be traced
            of_reference = differing(bfloat16_products.of_rounded_arguments(other))
        if of_reference or differing(rounded(function, exact=list(sites))):
            return results  # as ill-conditioned as it is; or as if copies race
    except Exception as error:  # noqa: BLE001 - what a kernel raises is of any class
        if pace is not None and not pace.left:
            left_out = f"{PRODUCTS}: the budget of {pace.budget:g} s ended"
        else:
            left_out = f"{NOT_ROUNDED}: {raised.in_a_line(error)}"
        return replace(results, left_out=left_out)
    exact = leaves(result, compared.name)
    findings = [_finding(compared, pair, exact[i], list(sites)) for i, pair in found]
    digests = (next(iter(sites.values())),) * len(findings)
    return replace(results, findings=tuple(findings), kernels=digests)


def _tolerance(compared: ComparedCall, actual: Leaf, expected: Leaf) -> Tolerance:
    """Tolerance of one output: as requested, and at least the default of bfloat16."""
    dtypes, values = (actual.dtype, expected.dtype), expected.wide
    asked = compared.tolerance
    rtol = max(asked.of(dtypes, values).rtol, DEFAULTS["bfloat16"])
    if asked.atol is None:
        return Tolerance(rtol=rtol)
    least = Tolerance(rtol=rtol).of(dtypes, values).atol
    return Tolerance(rtol=rtol, atol=max(asked.atol, least))


def _differing(
    compared: ComparedCall,
    expected: Sequence[Leaf],
    pace: Pace | None,
    function: Callable[..., Any],
) -> list[tuple[int, Differences]]:
    """Outputs of a function with rounded products that differ, by number."""
    host = MachineHost(Unobserved(), pace=pace)
    with chip.answering(compared.target), hosted.hosting(host), hook.unannounced():
        result = reference.result(function, compared.args, compared.kwargs)
    pairs = [
        Differences(a, b, _tolerance(compared, a, b))
        for a, b in zip(leaves(result, compared.name), expected, strict=True)
    ]
    return [(i, pair) for i, pair in enumerate(pairs) if pair.count]


def _finding(
    compared: ComparedCall, pair: Differences, exact: Leaf, sites: Sequence[ProductSite]
) -> Finding:
    lines = [site.line for site in sites if site.line is not None]
    element, what = pair.first, output_name(pair.actual.path)
    error, at = pair.largest_absolute()
    seen = Sighting(
        kernel=sites[0].kernel,
        engine="reference",
        witness=Witness(
            source=next(iter(lines), None), other=next(iter(lines[1:]), None), operand=what
        ),
    )
    rounded, without, expected = (
        text(leaf, element) for leaf in (pair.actual, exact, pair.expected)
    )
    values = {"value": rounded, "without rounding": without, "expected": expected}
    return seen.with_values({"element": str(list(element)), **values}).of(
        Fault.LOW_PRECISION_PRODUCT,
        what=f"{what}, {pair.actual}",
        count=pair.count,
        total=pair.bad.size,
        reference=compared.reference,
        products=[line_text(line) for line in lines] if len(lines) > 1 else None,
        element=str(list(element)) if element else "it",
        rounded=rounded,
        exact=without,
        expected=expected,
        error=f"{error} at {list(at)}" if at else error,
        allowed="none, since these are not floats" if pair.allowed is None else pair.allowed,
    )
