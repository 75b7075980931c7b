"""`verify_program`: judge the kernels that a program calls while it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.errors import UsageError
from pallas_debug.hooks import hookimpl
from pallas_debug.model import Compilation, Kernel
from pallas_debug.session import Session, only_defines, resolve_targets, sanitizing
from pallas_debug.verdict import engines as ask
from pallas_debug.verdict import interpreted, points, unwritten
from pallas_debug.verdict.answers import Answers
from pallas_debug.verdict.engines import Seen
from pallas_debug.verdict.result import Verdict
from pallas_debug.verdict.run import Request, conclude


def verify_program(
    run: Callable[[], BaseException | None],
    name: str,
    request: Request,
    source: Path | None = None,
    answers: Answers | None = None,
) -> Verdict:
    """Verify the kernels that a program lowers while it runs.

    Each kernel is analysed statically, and its compilation begins, when it is lowered. The program
    runs once, with its kernels on the kernel machine.

    Args:
      run: runs the program and returns the exception that ended it, None on success.
      name: name of the program.
      source: file of the program, if any.
      answers: receives the engines' answers as they arrive.

    Raises:
      UsageError: as for `verify`.
    """
    request.check()
    asked = request.asked
    answers = answers or Answers()
    answers.ask(asked, request.chips, hints=request.shows_hints)
    if "static" in asked and source is not None:
        answers.add(ask.guarded("static", (), ask.removed_names, source))
    options = request.options(
        targets=request.chips if "compile" in asked else (),
        prints=True,
        interpret=sanitizing(None, request.watch) if "machine" in asked else "auto",
        stops_unfit="static" in asked,
        hang_after=request.hang_after,
    )
    early = _Early(request, answers)
    with Session(options, early, runs=True) as session:
        early.session = session
        answers.compile_in(session)
        ran = interpreted.ran_once(run, session, asked)
        answers.add(ran)
    captures = session.captures
    if (
        not captures
        and not session.uncaptured
        and not any(one.findings or one.problems for one in answers.seen)
    ):
        raise UsageError(
            f"{name} called no Pallas kernel: nothing to verify. "
            + only_defines(name, "--pallas-verify")
        )
    if not any(one.findings for one in answers.seen):  # the program was not stopped
        points.require(request.watch, captures)
    wanted = session.targets or resolve_targets(request.chips, session.plugins)
    if "compile" in asked:
        for captured in captures:
            if request.why_not(captured) is None:
                names = [target.name for target in wanted]
                answers.add(*ask.compilations(session, captured.kernel, names))
                if captured.is_partitioned:
                    answers.add(ask.partitioned(captured.kernel))
    findings, dropped = unwritten.used([f for one in answers.seen for f in one.findings], session)
    seen = [*answers.seen, Seen(dropped=dropped)]
    return conclude(name, request, session, captures, seen, findings, targets=wanted)


class _Early:
    """Plugin that analyses each kernel when it is lowered, before it runs, and announces what that
    and the compilations find."""

    def __init__(self, request: Request, answers: Answers) -> None:
        self._request = request
        self._answers = answers
        self.session: Session | None = None

    @hookimpl
    def pallas_debug_kernel_captured(self, kernel: Kernel) -> None:
        found = self._capture(kernel)
        if found is None or self.session is None or "static" not in self._request.asked:
            return
        wanted = self.session.targets or resolve_targets(self._request.chips, self.session.plugins)
        targets = ask.traced_for(self.session, kernel, wanted)
        seen = ask.guarded("static", [kernel], ask.static, found, targets)
        self._answers.add(seen)
        self._answers.announce(seen)

    @hookimpl
    def pallas_debug_compilation_finished(
        self, kernel: Kernel, compilation: Compilation, files: Mapping[str, Any]
    ) -> None:
        if self._capture(kernel) is not None:
            self._answers.announce(ask.compiled(kernel, compilation))

    def _capture(self, kernel: Kernel) -> Capture | None:
        """The kernel's capture, unless the engines for TPUs do not apply to it."""
        captures = () if self.session is None else self.session.captures
        found = next((c for c in captures if c.kernel.digest == kernel.digest), None)
        return None if found is None or self._request.why_not(found) is not None else found
