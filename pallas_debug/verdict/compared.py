"""The engine `values`: compare the function's results with a reference's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.lowering import trace
from pallas_debug.comparison import compare, reference, rounding
from pallas_debug.comparison.compare import Results
from pallas_debug.comparison.compared import ComparedCall
from pallas_debug.comparison.tolerances import Tolerance
from pallas_debug.hooks import plugin_manager
from pallas_debug.model import Kernel, Target
from pallas_debug.session import Options, Session, resolve_targets
from pallas_debug.verdict import interpreted
from pallas_debug.verdict.engines import Call, Seen
from pallas_debug.verdict.result import Outcome, outcome_of

NO_RESULT = "the function returned no result to compare: see `machine`"
NOT_KNOWN_WHOSE = (
    "the results differ from those of the reference, but whether this kernel is at fault is unknown"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Expected:
    """The results of a reference, and the comparison with it."""

    compared: ComparedCall
    result: Any


def expect(
    call: Call, function: Callable[..., Any], tolerance: Tolerance, chips: Sequence[str]
) -> Expected:
    """Run a reference with the values of a call.

    Args:
      function: the reference; it may call kernels itself.
      chips: names of targets; both functions are traced for the first.

    Raises:
      InvalidReference: the reference raised an exception, or its arrays do not match the
        function's.
      UsageError: the reference returned no arrays.
    """
    args, kwargs = call.values.args, call.values.kwargs
    target = resolve_targets(tuple(chips), plugin_manager())[0]
    options = Options(interpret="auto", chip=target.name, epoch=object())
    with Session(options, runs=True) as session:
        result = reference.run(function, args, kwargs)
        session.wait_for_runs()
    compared = ComparedCall(
        function=call.function,
        args=args,
        kwargs=kwargs,
        target=target,
        name=reference.name_of(call.function),
        reference=reference.name_of(function),
        tolerance=tolerance,
        other=function,
    )
    theirs = compare.leaves(result, compared.reference)
    shapes = None
    with contextlib.suppress(Exception):  # a call that cannot be traced is a finding of `trace`
        shapes = trace.result_shapes(call.function, args, kwargs, target)
    if shapes is not None:
        compare.check_alike(compare.abstract_leaves(shapes), theirs, compared)
    return Expected(compared=compared, result=result)


def judged(
    call: Call,
    captures: Sequence[Capture],
    target: Target,
    expected: Expected,
    ran: Seen | None,
) -> Seen:
    """Compare the results of a function that calls these kernels.

    If they agree, they are compared again with float32 products computed as on a TPU.

    Args:
      ran: the run of the engine `machine`, whose result is compared; None to run the function here.
    """
    if ran is None or ran.options is None:  # it is beyond the limits of the sanitizer
        kernels = [captured.kernel for captured in captures]
        ran = interpreted.ran(call, kernels, "auto", target.name, "values")
    called = {c.kernel.digest: c for c in (*captures, *ran.captures)}
    instead = {o.digest: o.reason for o in ran.outcomes if o.status == "skipped"}
    skipped = [
        outcome_of(called.pop(digest).kernel, "values", "skipped", reason)
        for digest, reason in instead.items()
    ]
    kernels = [captured.kernel for captured in called.values()]
    if not ran.returned:
        reasons = {o.digest: o.reason for o in ran.outcomes if o.status == "unjudged"}
        missing = (
            outcome_of(k, "values", "unjudged", reasons.get(k.digest) or NO_RESULT) for k in kernels
        )
        return Seen(outcomes=(*skipped, *missing))
    only: dict[str, Any] = {}  # of the function's kernel, if it calls only one
    if len(kernels) == 1:
        only = {"kernel": kernels[0].name, "digest": kernels[0].digest}
    judged = replace(expected.compared, target=target)
    results = compare.compare(judged, ran.result, expected.result)
    left_out: list[str] = []
    if not results.findings:
        rounded = rounding.compare_rounded(
            judged, list(called.values()), ran.result, expected.result
        )
        results = replace(results, findings=rounded.findings, kernels=rounded.kernels)
        left_out += filter(None, [rounded.left_out])
    return Seen(
        outcomes=(
            *skipped,
            *(_outcome(kernel, kernels, results, ran).without(*left_out) for kernel in kernels),
        ),
        findings=tuple(replace(finding, **only) for finding in results.findings),
        problems=tuple(map(str, results.problems)),
        notes=results.notes,
    )


def _outcome(kernel: Kernel, kernels: Sequence[Kernel], results: Results, ran: Seen) -> Outcome:
    if results.findings and (kernel.digest in results.kernels or len(kernels) == 1):
        return outcome_of(kernel, "values", "found").without(*results.gaps)
    if results.findings:
        return outcome_of(kernel, "values", "unsupported", NOT_KNOWN_WHOSE)
    if results.gaps:
        reasons = "; ".join(gap.reason for gap in results.gaps)
        return outcome_of(kernel, "values", "unjudged", reasons)
    known = [o for o in ran.outcomes if o.digest == kernel.digest]
    if kernel.digest not in ran.launched and any(o.status == "unjudged" for o in known):
        return outcome_of(kernel, "values", "unjudged", known[0].reason)
    return outcome_of(kernel, "values", "ok")
