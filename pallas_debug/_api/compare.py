"""`pallas_debug.compare`: compare the results of a function with those of a reference."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pallas_debug import defaults
from pallas_debug import render as text
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.lowering import trace
from pallas_debug.comparison import gradients
from pallas_debug.comparison import reference as runs
from pallas_debug.comparison.compare import ComparedOutput
from pallas_debug.comparison.compared import ComparedCall
from pallas_debug.comparison.rounding import compare as compare_results
from pallas_debug.comparison.tolerances import Tolerance
from pallas_debug.errors import UsageError, ValuesDiffer
from pallas_debug.findings import stops
from pallas_debug.findings.faults import Fault
from pallas_debug.guards import check_arguments, check_function
from pallas_debug.inputs.made_up import filled
from pallas_debug.model import Finding, Gap
from pallas_debug.session import Interpret, Options, Session, resolve_targets
from pallas_debug.tracebacks import WithoutOurFrames


@dataclass(frozen=True, kw_only=True, repr=False)
class ComparisonReport:
    """Results of a function, compared with those of a reference.

    Attributes:
      name, reference: names of both functions.
      outputs: one for each array that the functions return.
      findings: faults that an interpreter reported, then a `ValueMismatch` for each output that
        differs; if none does, a `LowPrecisionProduct` for each output that would differ on a TPU.
      gaps: elements that could not be compared, because the reference is NaN there.
      kernels: names of the kernels that the function called.
      notes: remarks, such as that the function called no kernel, or that arguments were made up.
    """

    name: str
    reference: str
    outputs: tuple[ComparedOutput, ...]
    findings: tuple[Finding, ...] = ()
    gaps: tuple[Gap, ...] = ()
    kernels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if every element was compared and none differs by more than the tolerance."""
        return not self.findings and not self.gaps

    @property
    def not_judged(self) -> tuple[str, ...]:
        """Reasons for the gaps, each a sentence."""
        return tuple(gap.reason for gap in self.gaps)

    def throw(self) -> None:
        """Raise an exception unless everything was compared and nothing differs.

        Raises:
          ValuesDiffer: the results differ, or could not be compared.
        """
        if not self.ok:
            raise ValuesDiffer(str(self), self.findings)

    def __repr__(self) -> str:
        return f"<Comparison {'ok' if self.ok else 'failed'}: {self._summary()}>"

    def _summary(self) -> str:
        who = f"{self.name} and {self.reference}"
        elements = sum(output.elements for output in self.outputs)
        outputs = text.plural(len(self.outputs), "output")
        differing = sum(output.differing for output in self.outputs)
        unjudged = sum(output.unjudged for output in self.outputs)
        message = f"{who} agree in {text.plural(elements, 'element')} of {outputs}"
        if differing:
            message = f"{who} differ in {differing:,} of {text.plural(elements, 'element')}"
            message += f" of {outputs}"
        elif unjudged:
            message = (
                f"{who} agree in {elements - unjudged:,} of {elements:,} elements of {outputs}"
            )
        if any(finding.kind is Fault.LOW_PRECISION_PRODUCT for finding in self.findings):
            message += ", and not with float32 products as a TPU computes them"
        return f"{message}; {unjudged:,} not judged" if unjudged else message

    def _repr_html_(self) -> str:
        from pallas_debug.report.notebook import checks_html, verdict_mark

        notes = [*self.not_judged, *self.notes]
        summary = verdict_mark(self.ok, self._summary())
        return checks_html(summary, self.findings, not_checked=notes, title="Not judged, and notes")

    def __str__(self) -> str:
        parts = [*(text.finding_text(finding) for finding in self.findings)]
        parts += [f"not judged: {sentence}" for sentence in self.not_judged]
        parts += [f"note: {note}" for note in self.notes]
        return "\n\n".join([*parts, self._summary()])


def compare(
    function: Callable[..., Any],
    reference: Callable[..., Any] | None,
    /,
    *args: Any,
    grad: bool = False,
    rtol: float | None = None,
    atol: float | None = None,
    interpret: Interpret = None,
    chip: str | None = None,
    **kwargs: Any,
) -> ComparisonReport:
    """Compare the results of a function with those of a reference, for the same arguments.

        report = pallas_debug.compare(flash_attention, attention, q, k, v)
        report.throw()

    An element differs if its error is more than `atol` plus `rtol` times the expected element. The
    default `rtol` depends on the output's dtype (1e-9 for float64, 1e-4 for float32, 2**-8 for
    float16, 2**-6 for bfloat16), and the default `atol` is `rtol` times the largest finite element
    of the reference. Integers and bools must be equal, whatever you pass. Infinities must be equal.
    Elements that are NaN in the reference are not compared, and the report is then not `ok`.

    If all elements agree, the function is run again with its float32 products computed as on a TPU,
    from operands rounded to bfloat16. An output that is then off by more than bfloat16's tolerance
    is also a finding, unless the reference would be off too.

    Both functions are run, the reference first. Both may call kernels, so you can compare two
    versions of a kernel.

    With `grad`, the gradients with respect to all arrays of floats are compared instead, for the
    same random cotangents. If `reference` is None, they are compared with finite differences of the
    function itself, in two random directions of each argument, to 2 %; that takes float32.

    Args:
      function: the function to check; usually it calls kernels, but it does not have to.
      reference: a function that takes the same arguments and returns arrays of the same structure
        and shapes, and of the same dtypes or wider ones: int32 for int8, float32 for bfloat16.
        Only with `grad` may it be None.
      *args: arrays, or `jax.ShapeDtypeStruct`s, which are filled with random normal values, or with
        zeros for integers and bools (large matrices of at most 8 bits: random). Anything
        else is passed through.
      grad: whether to compare gradients instead of results.
      rtol, atol: relative and absolute tolerance of floats.
      interpret: a mode, as for `pallas_debug.interpret`; by default `auto` without an accelerator,
        otherwise `off`.
      chip: target whose chip is reported to code that queries it; v5e by default.
      **kwargs: passed to both functions, like `args`.

    Returns:
      A report with a finding for each output that differs: the first block, its grid point, the
        first element, the number of elements, the largest errors, and their pattern.

    Raises:
      UsageError: a tolerance is not a number of at least 0, the call is within jit, a result has no
        arrays, or there is nothing to differentiate by.
      InvalidReference: the reference raised an exception, or its structure, shapes or dtypes
        differ.
      KernelFault: an interpreter stopped a kernel of the function.
    """
    asked = prepare(function, reference, args, kwargs, rtol, atol, grad=grad, chip=chip)
    options = Options(interpret=interpret, chip=chip)
    with WithoutOurFrames():
        with Session(options, runs=True) as session:
            expected = run_reference(asked)
            session.wait_for_runs()
        with Session(options, runs=True) as session:
            try:
                result = run(asked)
                session.wait_for_runs()
            except Exception as error:
                if found := session.observer.findings:
                    raise stops.fault_of(error, found, text.finding_text) from error
                raise
        called = [c for c in session.captures if c.kernel.digest in session.used]
        report = judge(asked, result, expected, called)
    return replace(
        report,
        findings=(*session.observer.findings, *report.findings),
        notes=(*map(str, session.problems), *report.notes),
    )


def prepare(
    function: Callable[..., Any],
    reference: Callable[..., Any] | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    rtol: float | None,
    atol: float | None,
    *,
    grad: bool,
    chip: str | None,
) -> ComparedCall:
    """Check the arguments of `compare`, and make up values for those given only by shape.

    Args:
      chip: target to trace the function for, to find the kernels behind its results.

    Raises:
      UsageError: as for `compare`.
    """
    check_function("pallas_debug.compare", function)
    if reference is not None or not grad:
        check_function("pallas_debug.compare", reference)
    own = inspect.signature(compare).parameters
    check_arguments("pallas_debug.compare", function, args, kwargs, own)
    if trace.is_traced((args, kwargs)):
        raise UsageError(
            f"pallas_debug.compare({runs.name_of(function)}, …) runs its functions and cannot be "
            "traced by jit, vmap or grad. Put it outside of them, as in compare(jax.jit(f), g, x)."
        )
    if grad:
        both = gradients.of(function, reference, args, kwargs)
        function, reference = both.function, both.reference
        rtol = both.rtol if rtol is None else rtol
    assert reference is not None
    given = filled(function, args, kwargs)
    (target,) = resolve_targets((chip or defaults.TARGET,))
    return ComparedCall(
        function=function,
        args=given.args,
        kwargs=given.kwargs,
        target=target,
        name=runs.name_of(function),
        reference=runs.name_of(reference),
        tolerance=Tolerance(rtol=rtol, atol=atol),
        other=reference,
        made_up=tuple(given.named.values()),
    )


def run_reference(asked: ComparedCall) -> Any:
    """Run the reference of a comparison.

    Raises:
      InvalidReference: it raised an exception.
    """
    return runs.run(asked.other, asked.args, asked.kwargs)


def run(asked: ComparedCall) -> Any:
    """Run the function of a comparison, and wait for its results.

    Raises:
      UsageError: jax cannot differentiate it; whatever it raises itself.
    """
    try:
        return runs.result(asked.function, asked.args, asked.kwargs)
    except Exception as error:
        if refused := gradients.refusal(error):
            raise UsageError(refused) from error
        raise


def judge(
    asked: ComparedCall, result: Any, expected: Any, captures: Sequence[Capture]
) -> ComparisonReport:
    """Compare the results of both functions.

    Args:
      captures: kernels that the function called.

    Raises:
      UsageError, InvalidReference: as for `compare`.
    """
    found = compare_results(asked, captures, result, expected)
    names = tuple(dict.fromkeys(captured.kernel.name for captured in captures))
    notes = [*found.notes, *map(str, found.problems)]
    notes += [f"not judged: {found.left_out}"] if found.left_out else []
    if not names:
        notes.append(f"{asked.name} called no Pallas kernel: only values were compared")
    if asked.made_up:
        notes.append(f"values were made up for {' and '.join(asked.made_up)}")
    return ComparisonReport(
        name=asked.name,
        reference=asked.reference,
        outputs=found.outputs,
        findings=found.findings,
        gaps=found.gaps,
        kernels=names,
        notes=tuple(notes),
    )
