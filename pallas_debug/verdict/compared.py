"""The engine `values`: compare the function's results with a reference's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.comparison import reference, rounding
from pallas_debug.comparison.compare import Results
from pallas_debug.comparison.compared import ComparedCall
from pallas_debug.comparison.tolerances import Tolerance
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
      InvalidReference: the reference raised an exception.
      UsageError: the reference returned no arrays.
    """
    args, kwargs = call.values.args, call.values.kwargs
    target = resolve_targets(tuple(chips))[0]
    options = Options(interpret="auto", chip=target.name, epoch=("reference", target.name))
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
    return Expected(compared=compared, result=result)


def values(
    call: Call, captures: Sequence[Capture], target: Target, expected: Expected, ran: Seen | None
) -> Seen:
    """Compare the results of a function that calls these kernels.

    If they agree, they are compared again with float32 products computed as on a TPU.

    Args:
      ran: the run of the engine `machine`, whose result is compared; None to run the function here.
    """
    if ran is None or ran.options is None:  # the engine was not asked, or failed
        kernels = [captured.kernel for captured in captures]
        ran = interpreted.ran(call, kernels, "auto", target.name, "values")
    called = {c.kernel.digest: c for c in (*captures, *ran.captures)}
    skipped, reasons = list[Outcome](), dict[str, str]()
    for outcome in ran.outcomes:
        if outcome.status == "skipped":
            kernel = called.pop(outcome.digest).kernel
            skipped.append(outcome_of(kernel, "values", "skipped", outcome.reason))
        elif outcome.status == "unjudged" and (
            outcome.digest not in ran.launched or not ran.returned
        ):
            reasons[outcome.digest] = outcome.reason or NO_RESULT
    kernels = [captured.kernel for captured in called.values()]
    judged = replace(expected.compared, target=target)
    if not ran.returned:
        why = NO_RESULT if call.pace.partial is None else call.pace.why
        unjudged = (
            outcome_of(k, "values", "unjudged", reasons.get(k.digest, why)) for k in kernels
        )
        return Seen(outcomes=(*skipped, *unjudged))
    results = rounding.compare(judged, called.values(), ran.result, expected.result, call.pace)
    is_only = len(kernels) == 1
    only: dict[str, Any] = {}  # of the function's kernel
    if is_only:
        only = {"kernel": kernels[0].name, "digest": kernels[0].digest}
    outcomes = [_outcome(kernel, results, reasons, is_only=is_only) for kernel in kernels]
    if left_out := results.left_out:
        is_over = not call.pace.left
        outcomes = [o.in_part(left_out) if is_over else o.without(left_out) for o in outcomes]
    return Seen(
        outcomes=(*skipped, *outcomes),
        findings=tuple(replace(finding, **only) for finding in results.findings),
        problems=tuple(map(str, results.problems)),
        notes=results.notes,
    )


def _outcome(
    kernel: Kernel, results: Results, reasons: Mapping[str, str], *, is_only: bool
) -> Outcome:
    if results.findings and (kernel.digest in results.kernels or is_only):
        return outcome_of(kernel, "values", "found").without(*results.gaps)
    if results.findings:
        return outcome_of(kernel, "values", "unsupported", NOT_KNOWN_WHOSE)
    missing = "; ".join(gap.reason for gap in results.gaps) or reasons.get(kernel.digest)
    return outcome_of(kernel, "values", "unjudged" if missing else "ok", missing)
