"""`pallas_debug.check`: run a function with checks in its kernels, and report all failures."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from pallas_debug import defaults
from pallas_debug import render as text
from pallas_debug.bridge.lowering import trace
from pallas_debug.checks import names
from pallas_debug.errors import ChecksFailed, KernelNotJudged, UsageError
from pallas_debug.findings import stops
from pallas_debug.guards import check_function
from pallas_debug.model import Finding, Gap, Kernel, PrintRecord
from pallas_debug.session import Interpret, Options, Session, sanitizing
from pallas_debug.session.options import mode_of, require_checkable
from pallas_debug.tracebacks import WithoutOurFrames
from pallas_debug.verdict import unwritten

P = ParamSpec("P")
R = TypeVar("R")

_epochs = itertools.count(1)


@dataclass(frozen=True, kw_only=True)
class Report:
    """Results of the checks of one call.

    Attributes:
      findings: every check that failed, each line once, in order of first failure; of a kernel
        that a compiler runs, only the first check that failed. A finding whose condition
        (`only_if`) could not be determined is not a failure.
      prints: output of the kernels' prints.
      gaps: kernels that could not be checked, or only in part: the absence of findings in them
        proves nothing.
    """

    findings: tuple[Finding, ...] = ()
    prints: tuple[PrintRecord, ...] = ()
    gaps: tuple[Gap, ...] = ()

    @property
    def ok(self) -> bool:
        """True if everything was checked and nothing failed."""
        return not any(f.counts for f in self.findings) and not self.gaps

    @property
    def not_checked(self) -> tuple[str, ...]:
        """The gaps as sentences."""
        return tuple(map(text.gap_text, self.gaps))

    def throw(self) -> None:
        """Raise an exception unless everything was checked and nothing failed.

        Raises:
          ChecksFailed: a check failed, or a kernel could not be checked.
        """
        if not self.ok:
            raise ChecksFailed(str(self), self.findings)

    def __str__(self) -> str:
        if self.ok and not self.findings:
            return "no check failed"
        return "\n\n".join([*(text.finding_text(f) for f in self.findings), *self.not_checked])

    def __repr__(self) -> str:
        return f"<Report {self.summary}>"

    @property
    def summary(self) -> str:
        """Outcome in one line: `2 findings; 1 kernel not checked`."""
        counted = sum(finding.counts for finding in self.findings)
        rested = len(self.findings) - counted
        parts = [text.plural(counted, "finding")] if counted else []
        if rested:
            parts.append(f"{text.plural(rested, 'finding')} on a condition, not counted")
        if self.gaps:
            parts.append(f"not everything was checked ({text.gap_title(self.gaps[0])})")
        return "; ".join(parts) or "no check failed"

    def _repr_html_(self) -> str:
        from pallas_debug.report.notebook import checks_html, verdict_mark

        summary = verdict_mark(self.ok, self.summary)
        return checks_html(summary, self.findings, self.prints, self.not_checked)


def check(
    function: Callable[P, R],
    errors: str | Iterable[str] = defaults.DEFAULT_CHECKS,
    *,
    interpret: Interpret = None,
    sanitize: bool = False,
    chip: str | None = None,
) -> Callable[P, tuple[Report, R]]:
    """Wrap `function` so that the kernels it calls run with checks.

        report, out = pallas_debug.check(attention)(q, k, v)
        report.throw()

    On a CPU, the kernels that `function` lowers, with or without jit, vmap, grad or scan, run on
    the kernel machine, which observes every access and operation; `errors` selects the kinds of
    faults to report. On an accelerator they run with added code that counts failures.

    Args:
      function: a function that calls kernels. It is run, so the wrapper cannot be used within jit;
        use `checkify` (`pallas_debug.checkify`) there.
      errors: names of checks, as a list or joined by commas: `user`, `nan`, `inf`, `index`,
        `div`, `float_div`, `hint`, `uninitialized`; `all` for all of them.
      interpret: `auto` or `machine` for the kernel machine, or `off` for added code; by default
        `auto` without an accelerator, otherwise `off`.
      sanitize: whether to run the kernels on the kernel machine and report every kind of fault;
        `errors` then has no effect.
      chip: target whose chip is reported to code that queries it; v5e by default.

    Returns:
      A function with the same arguments that returns the report and the result of `function`.

    Raises:
      UsageError: an unknown check, one of jax's interpreters as the mode, or a call within jit.
      KernelFault: raised by the returned function if an interpreter stopped the program.

    The returned function raises `UsageError` if `function` called no kernel: nothing was checked.
    """
    with WithoutOurFrames():
        check_function("pallas_debug.check", function)
        checks = names.parse(errors)
        mode = sanitizing(interpret) if sanitize else interpret
        require_checkable(mode_of(mode), () if sanitize else checks)
        options = Options(
            checks=() if sanitize else checks,
            prints=True,
            interpret=mode,
            chip=chip,
            epoch=f"check {next(_epochs)}",
        )

    earlier: dict[str, tuple[Kernel, list[Gap]]] = {}

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> tuple[Report, R]:
        name = getattr(function, "__qualname__", repr(function))
        if trace.is_traced((args, kwargs)):
            raise UsageError(
                f"pallas_debug.check({name}) runs its function and cannot be traced by jit, vmap "
                "or grad. Put it outside of them, as in check(jax.jit(f)), or use "
                "checkify.checkify after `import pallas_debug.checkify`."
            )
        with WithoutOurFrames(), Session(options, runs=True) as session:
            try:
                out = trace.block_until_ready(function(*args, **kwargs))
            except Exception as error:
                if found := session.observer.findings:
                    raise stops.fault_of(error, found, text.finding_text) from error
                raise
        if not session.used and not session.problems:
            raise UsageError(
                f"{name} called no Pallas kernel with these arguments: nothing was checked. Does "
                "it take another path for them, or off a TPU, or was it compiled before?"
            )
        return (
            Report(
                findings=unwritten.resolved(
                    session.observer.findings, function, args, kwargs, session, out
                ),
                prints=session.observer.records,
                gaps=tuple(dict.fromkeys(_gaps(session, earlier))),
            ),
            out,
        )

    return checked


def _gaps(session: Session, earlier: dict[str, tuple[Kernel, list[Gap]]]) -> Iterator[Gap]:
    """Yield what was not checked in a call, or only in part.

    Args:
      earlier: by digest, kernels that an earlier call lowered, and their gaps: jax caches the
        program, so a later call does not lower them again.
    """
    for kernel in session.kernels:
        gaps = [gap for gap in session.unchecked if gap.kernel == kernel.name]
        earlier[kernel.digest] = (kernel, gaps)
    yield from session.gaps()
    known = {gap.reason for gap in session.uncaptured}
    for problem in session.problems:
        if not isinstance(problem, KernelNotJudged) and str(problem) not in known:
            yield Gap(kernel="", engine="", reason=str(problem))
    for digest in session.used:
        lowered, gaps = earlier.get(digest, (None, []))
        reason = None if lowered is None else session.grids.why_empty(lowered)
        if digest not in session.launched:
            reason = "it did not run to its end. Is it in a branch that was not taken?"
        if gaps or reason is None:
            yield from gaps
        else:
            name = "?" if lowered is None else lowered.name
            yield Gap(kernel=name, engine="checks", reason=reason)
