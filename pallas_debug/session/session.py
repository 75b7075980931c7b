"""The session: sets modes, captures kernels, queues them for compilation, notifies subscribers.

`Session` ties the engines together and knows nothing about user interfaces.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pallas_debug import defaults
from pallas_debug.bridge import chip, meaning, patches, platform
from pallas_debug.bridge.active import ThreadValue
from pallas_debug.bridge.capture import capture
from pallas_debug.bridge.capture.callers import KernelCallers
from pallas_debug.bridge.hosted import launched
from pallas_debug.bridge.hosted import lowering as hosted
from pallas_debug.bridge.instrument import observe
from pallas_debug.bridge.interpret import interpret
from pallas_debug.bridge.interpret.params import Mode
from pallas_debug.bridge.jaxprs.params import name_of
from pallas_debug.bridge.lowering import hook
from pallas_debug.errors import KernelNotJudged, PallasDebugError
from pallas_debug.findings import stops
from pallas_debug.guards import Boundary, guarded, problem_of
from pallas_debug.machine.host import KeptCalls, MachineHost
from pallas_debug.model import Dump, Finding, Gap, Hint, Kernel, PrintRecord, RunRecord, Target
from pallas_debug.render import gap_text
from pallas_debug.session.observer import RunObserver
from pallas_debug.session.options import (
    Options,
    checking,
    mode_of,
    require_checkable,
    resolve_targets,
)
from pallas_debug.session.queue import Queue, Stored
from pallas_debug.session.subscriber import Subscriber
from pallas_debug.store.locks import WAIT_MARGIN, Waiting
from pallas_debug.store.writer import open_store


class Session:
    """Captures kernels between entering and leaving, and compiles them in the background.

    Exiting waits for the compilations; exiting by ctrl+c, or ctrl+c while waiting, stops them.
    `kernels`, `dumps` and `problems` hold the results, during the session and after it;
    `uncaptured` the gaps for kernels that could not be captured, `unchecked` the gaps of checks and
    the sanitizer, `used` the digests of kernels in programs that were lowered or run, and
    `launched` the digests of kernels that ran to completion in an interpreter or with checks.
    `calls` has the arrays of calls that the options ask to keep.
    `queue` compiles the kernels, `callers` records their callers, `chip` is the chip that code sees
    while it is traced, if any, and `interpret_mode` is the mode in which kernels run; `off` leaves
    it to the code.

    Args:
      options: options of the session.
      *subscribers: objects to notify of events.
      runs: whether to also notify them of every run of a kernel.
      inform: called with messages about the whole run; by default they go to standard error.

    Raises:
      UnknownTargetError, DumpDirectoryError, IncompatibleJaxError, UsageError: on creation.
    """

    def __init__(
        self,
        options: Options,
        *subscribers: Subscriber,
        runs: bool = False,
        inform: Callable[[str], None] | None = None,
    ) -> None:
        self.options = options
        self._mode = mode_of(options.interpret)
        require_checkable(self._mode, options.checks)
        self.interpret_mode = checking(self._mode, options.checks)
        self._stopping = threading.Event()
        timeout, warn = options.timeout + WAIT_MARGIN, inform or _warn
        waiting = Waiting(timeout=timeout, warn=warn, stop=self._stopping)
        self.store = None if options.dumps is None else open_store(options.dumps, waiting=waiting)
        self.stored = Stored(self.store, self.report)
        self._subscribers = subscribers
        self.targets = self._wanted = resolve_targets(options.targets)
        needs_chip = (self.interpret_mode.kind != "off" or options.pretend) and not self.targets
        chip_name = options.chip or (defaults.TARGET if needs_chip else None)
        chips = resolve_targets((chip_name,)) if chip_name else self.targets
        self.chip = chips[0] if chips else None
        self.problems: list[PallasDebugError] = []
        self.uncaptured: list[Gap] = []
        self.unchecked: list[Gap] = []
        self.launched: set[str] = set()
        self.grids = launched.Grids()
        self.used: set[str] = set()
        self.raised: list[Finding] = []
        self.observer = RunObserver(
            checks=options.checks,
            prints=options.prints,
            printed=lambda record: self._publish("printed", record),
            skipped=self._skipped,
            report=self.report,
        )
        self.calls = None if options.keeps_call is None else KeptCalls(options.keeps_call)
        self._host = MachineHost(self.observer, options.refilled, self.calls, options.pace)
        self._runs = runs
        self.run_id = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}"
        self._identity = object()
        self._lock = threading.Lock()
        self._collected = ThreadValue[list[capture.Capture] | None](None)
        self._captures: dict[str, capture.Capture] = {}
        self.callers = KernelCallers()
        self.queue = Queue(options, self.stored, self.report, self.store)
        self._stack = contextlib.ExitStack()
        patches.require()

    def __enter__(self) -> Session:
        with contextlib.ExitStack() as stack:
            platform.leave_out_absent_tpu()
            if self.chip is not None:
                stack.enter_context(self.answering(self.chip, pretend=self.options.pretend or None))
            stack.enter_context(hosted.hosting(self._host))
            stack.enter_context(self.interpreting(self._mode))
            epoch = self.options.epoch and (self.options.epoch, self.interpret_mode)
            stack.enter_context(hook.watching(self, epoch=epoch, runs=self._runs))
            stack.enter_context(launched.listening(self._note_launch))
            if self.options.checks or self.options.prints:
                stack.enter_context(observe.observing(self.observer))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        stop = kind is not None and not issubclass(kind, Exception) and kind is not SystemExit
        try:
            try:
                self._leave(kind, *rest)
            finally:
                if not stop:
                    with self._guarded("summary", "waiting for compilations"):
                        self.wait()
        except Exception:
            raise
        except BaseException:
            stop = True
            raise
        finally:
            if stop:  # also stops threads of the pool that wait for a lock
                self._stopping.set()
            with self._guarded("summary", "stopping the compiler processes"):
                self.queue.close(stop=stop)
            self.stored.close()
            if self.store is not None:
                with self._guarded("store", "uploading the dump"):
                    self.store.close()

    def _leave(self, kind: type[BaseException] | None, *rest: Any) -> None:
        """Undo the effects of entering; exceptions other than those of kernels become problems."""
        try:
            self._stack.__exit__(kind, *rest)
        except PallasDebugError:
            raise
        except Exception as error:
            if interpret.is_of_a_kernel(error):
                raise
            self.report(problem_of(error, "hook", "leaving a session"))

    def __repr__(self) -> str:
        return f"<Session: {', '.join(k.name for k in self.kernels) or 'no kernels yet'}>"

    @property
    def kernels(self) -> list[Kernel]:
        """Distinct captured kernels, in the order of their first lowering."""
        return [c.kernel for c in self._captures.values()]

    @property
    def captures(self) -> list[capture.Capture]:
        """Captures of `kernels`, from which they can be lowered again."""
        return list(self._captures.values())

    @property
    def dumps(self) -> list[Dump]:
        """Captured kernels with their finished compilations."""
        folder = self.store.folder if self.store else lambda kernel: Path()
        finished = self.queue.finished(self.targets)
        return [
            Dump(kernel=k, folder=folder(k), compilations=tuple(finished.get(k.digest, ())))
            for k in self.kernels
        ]

    @property
    def kept(self) -> list[Dump]:
        """The `dumps` that were written completely; all `dumps` if nothing is written."""
        self.stored.wait()
        return self.dumps if self.store is None else self.store.kept(self.dumps)

    def start_compiler(self) -> None:
        """Start a compiler process in the background, ahead of the first kernel.

        If the dump directory has kernels, all results may come from it, so a process is started
        only when the first kernel needs it.
        """
        if self.store is None or self.store.is_empty():
            self.queue.start(self.targets[0] if self.targets else None)

    def wait(self, tick: Callable[[], None] | None = None) -> None:
        """Wait for every requested compilation, calling `tick` meanwhile, and for the files."""
        self.queue.wait(tick)
        self.stored.wait()

    def record_run(
        self,
        name: str,
        kernels: Iterable[Kernel] | None = None,
        *,
        prints: Iterable[PrintRecord] = (),
        findings: Iterable[Finding] = (),
        hints: Iterable[Hint] = (),
        gaps: Iterable[Gap] | None = None,
        judged: Mapping[str, Iterable[str]] | None = None,
    ) -> Path | None:
        """Record the kernels, prints, findings, hints and gaps of a test or script.

        Args:
          kernels: defaults to all captured ones.
          gaps: defaults to all gaps so far.
          judged: by digest of a kernel, the engines that judged it.

        Returns:
          The file that was written; None if nothing is dumped.
        """
        if self.store is None:
            return None
        self.stored.wait()
        with self._guarded("summary", f"recording what {name} used"):
            used = self.kernels if kernels is None else kernels
            folders = {kernel.digest: self.store.folder(kernel).name for kernel in used}
            return self.store.put_run(
                RunRecord(
                    run=self.run_id,
                    name=name,
                    kernels=tuple(folders.values()),
                    judged={folders[d]: tuple(by) for d, by in (judged or {}).items() if by},
                    prints=tuple(prints),
                    findings=tuple(findings),
                    hints=tuple(hints),
                    gaps=tuple(dict.fromkeys(self.gaps() if gaps is None else gaps)),
                )
            )
        return None

    def gaps(
        self, kernels: Iterable[Kernel] | None = None, *, since: int = 0, has_ended: bool = True
    ) -> Iterator[Gap]:
        """Yield kernels that were not captured, not checked, or not compiled, as gaps.

        Args:
          kernels: kernels to report; None for all.
          since: number of kernels that could not be captured earlier, which are skipped.
          has_ended: whether compilations without a result are gaps.
        """
        used = list(self.kernels if kernels is None else kernels)
        names = {kernel.name for kernel in used}
        yield from self.uncaptured[since:]
        yield from (gap for gap in self.unchecked if kernels is None or gap.kernel in names)
        yield from self.queue.uncompiled(used, has_ended=has_ended)

    @contextlib.contextmanager
    def collecting(self) -> Iterator[list[capture.Capture]]:
        """Capture kernels that this thread lowers, without compiling them yet."""
        collected: list[capture.Capture] = []
        with self._collected.setting(collected):
            yield collected

    @contextlib.contextmanager
    def interpreting(self, mode: Mode | str) -> Iterator[None]:
        """Run kernels in another mode, for one test or call within the session.

        Raises:
          UsageError: unknown mode.
        """
        asked, before = Mode.parse(mode), self._mode
        mode = checking(asked, self.observer.checks)
        with contextlib.ExitStack() as stack:
            self._mode = asked
            stack.callback(setattr, self, "_mode", before)
            stack.enter_context(interpret.interpreting(mode))
            yield

    @contextlib.contextmanager
    def checking(self, checks: Iterable[str]) -> Iterator[None]:
        """Change the checks of kernels, including those jitted earlier.

        Args:
          checks: names from `checks/names.py`; empty for none.

        Raises:
          UsageError: kernels run in one of jax's interpreters, which checks do not observe.
        """
        checks = tuple(checks)
        require_checkable(self._mode, checks)
        before, self.observer.checks = self.observer.checks, checks
        try:
            with contextlib.ExitStack() as stack:
                stack.enter_context(hook.in_epoch((self._identity, checks)))
                stack.enter_context(self.interpreting(self._mode))
                if not self.options.checks:
                    stack.enter_context(observe.observing(self.observer))
                yield
        finally:
            self.observer.checks = before

    @contextlib.contextmanager
    def compiling_for(self, names: Iterable[str]) -> Iterator[None]:
        """Change the targets for kernels that are lowered or run.

        Raises:
          UnknownTargetError: an unknown target.
        """
        before, self._wanted = self._wanted, resolve_targets(tuple(names))
        try:
            yield
        finally:
            self._wanted = before

    @contextlib.contextmanager
    def answering(self, target: Target, *, pretend: bool | None = None) -> Iterator[None]:
        """Change the chip presented to code that queries it; a no-op on a TPU.

        Args:
          pretend: whether jax's devices answer as that chip too; unchanged by default. With an
            accelerator they always answer as themselves.
        """
        if platform.has_tpu():
            yield
            return
        if pretend is None:
            pretend = chip.pretended() is not None
        with chip.answering_everywhere(target, pretend=pretend and not platform.has_accelerator()):
            yield

    @contextlib.contextmanager
    def separately(self) -> Iterator[None]:
        """Separate findings and prints from earlier ones, for example for a test.

        Clears `observer`, so that known faults are reported again. Queries of the chip count for
        the kernels of the test alone.
        """
        self.observer.clear()
        self.raised.clear()
        with chip.listening():
            yield

    def wait_for_runs(self) -> None:
        """Wait for interpreted kernels that this thread started, and raise their exceptions."""
        interpret.wait_for_runs()

    def reset(self) -> None:
        """Reset the interpreters, which otherwise keep their state after a kernel's exception."""
        interpret.reset()

    def _note_launch(self, digest: str, sizes: tuple[int, ...]) -> None:
        self.launched.add(digest)
        self.grids.note(digest, sizes)

    # Called by the hook, within jax: these must not raise.

    def lowered(self, primitive: str, context: Any, params: dict[str, Any]) -> object | None:
        name = "?"

        def report(problem: PallasDebugError) -> None:
            self.report(problem)
            missed = Gap(kernel=name, engine="capture", reason=str(problem))
            if missed not in self.uncaptured:
                self.uncaptured.append(missed)

        with guarded("capture", "reading the name of a kernel", lambda problem: None):
            name = name_of(params)
        with guarded("capture", "comparing what this jax does with a known one", report):
            meaning.examine()
        with guarded("capture", f"capturing kernel `{name}`", report):
            return self._captured(capture.capture(primitive, context, params))
        return None

    def _captured(self, captured: capture.Capture) -> object:
        kernel = captured.kernel
        self.used.add(kernel.digest)
        with self._lock:
            known = kernel.digest in self._captures
            self._captures.setdefault(kernel.digest, captured)
        if not known:
            with self._guarded("store", f"keeping kernel `{kernel.name}`"):
                self._keep(captured)
        with self._guarded("hook", f"recording the callers of kernel `{kernel.name}`"):
            self.callers.add(captured)
        if self._collected.value is not None:
            self._collected.value.append(captured)
        else:
            self.queue.request_traced(captured, self._wanted)
        return kernel.digest

    def _keep(self, captured: capture.Capture) -> None:
        """Notify the subscribers of a new kernel, and store it."""
        kernel = captured.kernel
        for problem in captured.problems:
            self.report(problem)
        self._publish("kernel_captured", kernel)
        self.stored.put_kernel(captured)

    def ran(self, tokens: tuple[object, ...]) -> None:
        self.used.update(map(str, tokens))
        for token in tokens:
            with self._guarded("hook", "recording which kernels ran"):
                captured = self._captures.get(str(token))
                if captured is not None:
                    if self._wanted is not self.targets:  # jitted before these targets were set
                        self.queue.request_traced(captured, self._wanted)
                    self._publish("kernel_used", captured.kernel)

    def failed(self, error: Exception) -> None:
        if finding := stops.finding_of(error):
            self.raised.append(finding)

    def report(self, problem: PallasDebugError) -> None:
        """Keep a problem until the session's owner reports it."""
        with self._lock:
            if str(problem) not in {str(known) for known in self.problems}:
                self.problems.append(problem)

    def _publish(
        self, event: Literal["kernel_captured", "kernel_used", "printed"], value: object
    ) -> None:
        for subscriber in self._subscribers:
            with self._guarded("hook", f"notifying {type(subscriber).__name__} of an event"):
                getattr(subscriber, event)(value)

    def _guarded(self, boundary: Boundary, doing: str) -> AbstractContextManager[None]:
        """Record exceptions as problems: our bugs must not fail the program."""
        return guarded(boundary, doing, self.report)

    def _skipped(self, gap: Gap) -> None:
        """Record a kernel that is not checked as requested."""
        with self._lock:
            self.unchecked.append(gap)
        self.report(KernelNotJudged(gap_text(gap)))


def _warn(sentence: str) -> None:
    sys.stderr.write(f"pallas-debug: {sentence}\n")
