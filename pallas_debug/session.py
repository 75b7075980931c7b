"""One session: modes on, kernels captured, compiled in the background, handed to the plugins.

Floor 3. `Session` ties the engines together and knows no face. Its plugins (`hooks.py`) are told
of what happens; the store that keeps it all is one of them.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pallas_debug.aot import job, targets
from pallas_debug.aot import switches as switch_names
from pallas_debug.aot.pool import DEFAULT_TIMEOUT, Pool, Settings, default_jobs
from pallas_debug.bridge import (
    capture,
    chip,
    hook,
    interpret,
    observe,
    platform,
    selftest,
    spell,
    tpu_interpret,
)
from pallas_debug.bridge.interpret_params import Mode
from pallas_debug.checks.observer import RunObserver
from pallas_debug.errors import CannotRunError, PallasDebugError
from pallas_debug.hooks import extra_targets, hookimpl, notify, plugin_manager
from pallas_debug.model import (
    Compilation,
    Dump,
    Finding,
    Kernel,
    PrintRecord,
    RunRecord,
    Target,
)
from pallas_debug.store.writer import Store

Interpret = Mode | str | None
"""Who runs kernels, as text or `Mode`. None is `auto` where there is no accelerator, else `off`."""

DEFAULT_HANG = 30.0
"""Seconds in which a kernel that is waited for must do something."""

DEFAULT_CHIP = "v5e"
"""What interpreted code is told that asks for its chip, where no target says otherwise."""

_reporting: list[object] = []
"""Who asked last is told of what an interpreter finds: a session within a session keeps its own."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a session is to do.

    Attributes:
      dumps: directory to dump into; None to capture alone.
      targets: names to compile for; empty to compile for none.
      chip: target whose chip is given to code that asks for one; the first target unless told, and
        v5e where there is none.
      interpret: who runs kernels: a mode such as `hlo`, `tpu,detect_races`, `auto` or `off`; None
        is `auto` where there is no accelerator, else `off`.
      timeout: seconds for one compilation.
      jobs: compiler processes at most.
      epoch: sessions of an equal epoch share jax's caches; each has its own unless told.
      checks: what running kernels are checked for, by name (`checks/names.py`); empty for nothing.
      prints: whether what interpreted kernels print is kept, and told to the plugins.
      switches: what is asked of compilations by name (`aot/switches.py`), such as `log_recorder`.
      hang_after: seconds without progress after which a kernel in TPU interpret mode is stopped.
    """

    dumps: Path | None = None
    targets: tuple[str, ...] = ()
    chip: str | None = None
    interpret: Interpret = None
    timeout: float = DEFAULT_TIMEOUT
    jobs: int = 0
    epoch: object | None = None
    checks: tuple[str, ...] = ()
    prints: bool = False
    switches: tuple[str, ...] = ()
    hang_after: float = DEFAULT_HANG


class StorePlugin:
    """Keeps what a session sees in a dump directory."""

    def __init__(self, store: Store) -> None:
        self.store = store

    @hookimpl
    def pallas_debug_kernel_captured(self, kernel: Kernel, jaxpr: str, source: str | None) -> None:
        self.store.put_kernel(kernel, jaxpr=jaxpr, source=source)

    @hookimpl
    def pallas_debug_claim_compilation(
        self, kernel: Kernel, target: Target
    ) -> AbstractContextManager[None]:
        return self.store.claim(kernel, target.name)

    @hookimpl
    def pallas_debug_find_compilation(
        self, kernel: Kernel, target: Target, key: str
    ) -> Compilation | None:
        return self.store.find_compilation(kernel, target.name, key)

    @hookimpl
    def pallas_debug_compilation_finished(
        self, kernel: Kernel, compilation: Compilation, files: Mapping[str, bytes | Path]
    ) -> None:
        if not compilation.cached:
            self.store.put_compilation(kernel, compilation, files)


class Session:
    """Kernels captured from entering to leaving, and compiled in the background.

    Leaving waits for the compilations; leaving by ctrl+c, then or while it waits, stops them.
    `kernels`, `dumps` and `problems` hold what there is, during and after.

    Args:
      options: what to do.
      *plugins: are told of what happens.
      runs: whether they are told of every run of a kernel as well.
      say: is given a sentence for each kernel that `auto` runs in TPU interpret mode.

    Raises:
      UnknownTargetError, DumpDirectoryError, IncompatibleJaxError, UsageError: on creation.
    """

    def __init__(
        self,
        options: Options,
        *plugins: object,
        runs: bool = False,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.options = options
        self._mode = _mode(options.interpret)
        self.store = Store(options.dumps) if options.dumps is not None else None
        ours = [StorePlugin(self.store)] if self.store else []
        self.plugins = plugin_manager(*ours, *plugins)
        self.targets = self._wanted = resolve_targets(options.targets, self.plugins)
        chip_name = options.chip or (None if self.targets or not self._interprets else DEFAULT_CHIP)
        chips = resolve_targets((chip_name,), self.plugins) if chip_name else self.targets
        self._chip = chips[0] if chips else None
        self.problems: list[PallasDebugError] = []
        self.unchecked: list[str] = []
        self.raised: list[str] = []
        self.observer = RunObserver(
            checks=options.checks,
            prints=options.prints,
            found=lambda finding: self._tell("finding", finding=finding),
            printed=lambda record: self._tell("print", record=record),
            skipped=self._skipped,
        )
        self._runs = runs
        self._say = say
        self._said: set[str] = set()
        self.run_id = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}"
        self._identity = object()
        self._lock = threading.Lock()
        self._local = threading.local()
        self._requested: set[tuple[str, str]] = set()
        self._captures: dict[str, capture.Capture] = {}
        self._calls: dict[str, set[tuple[str, int]]] = {}
        self._compilations: dict[tuple[str, str], Compilation] = {}
        self._futures: list[concurrent.futures.Future[object]] = []
        settings = Settings(jobs=options.jobs or default_jobs(), timeout=options.timeout)
        self._pool = Pool(settings, shared=True)
        self._jobs = job.Jobs(self._pool, switch_names.parse(options.switches))
        self._stack = contextlib.ExitStack()
        selftest.require()

    def __enter__(self) -> Session:
        with contextlib.ExitStack() as stack:
            platform.leave_out_absent_tpu()
            if self._chip is not None and not platform.has_tpu():
                stack.enter_context(chip.answering_everywhere(self._chip))
            stack.enter_context(self.interpreting(self.interpret_mode))
            stack.enter_context(hook.watching(self, epoch=self._epoch(), runs=self._runs))
            if self.options.checks or self.options.prints:
                stack.enter_context(observe.observing(self.observer))
            if self._interprets:
                stack.enter_context(self._reports())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        stop = kind is not None and not issubclass(kind, Exception) and kind is not SystemExit
        try:
            try:
                self._stack.__exit__(kind, *rest)
            finally:
                if not stop:
                    self.wait()
        except Exception:
            raise
        except BaseException:
            stop = True
            raise
        finally:
            self._pool.close(stop=stop)

    @property
    def interpret_mode(self) -> Mode:
        """Who runs kernels; `off` leaves it to the code."""
        return self._mode

    @property
    def kernels(self) -> list[Kernel]:
        """The distinct kernels that were captured, in the order of their first lowering."""
        return [c.kernel for c in self._captures.values()]

    @property
    def captures(self) -> list[capture.Capture]:
        """The same with what it takes to lower them again."""
        return list(self._captures.values())

    @property
    def dumps(self) -> list[Dump]:
        """The captured kernels with their finished compilations."""
        found = []
        finished = dict(self._compilations)
        names = dict.fromkeys([*(t.name for t in self.targets), *(name for _, name in finished)])
        for kernel in self.kernels:
            compilations = tuple(
                finished[kernel.digest, name] for name in names if (kernel.digest, name) in finished
            )
            folder = self.store.folder(kernel) if self.store else Path()
            found.append(Dump(kernel=kernel, folder=folder, compilations=compilations))
        return found

    @property
    def pending(self) -> int:
        """Compilations that are asked for and not finished."""
        return sum(not f.done() for f in self._futures)

    def wait(self, tick: Callable[[], None] | None = None) -> None:
        """Until every compilation that was asked for is finished; `tick` is called meanwhile."""
        while unfinished := [f for f in self._futures if not f.done()]:
            concurrent.futures.wait(unfinished, timeout=0.1 if tick else None)
            if tick:
                tick()

    def record_run(
        self,
        name: str,
        kernels: Iterable[Kernel] | None = None,
        *,
        prints: Iterable[PrintRecord] = (),
        findings: Iterable[Finding] = (),
    ) -> Path | None:
        """Keep which kernels a test or script used (all that were captured unless told), what they
        printed and what was found; the file that has it, None where nothing is dumped."""
        if self.store is None:
            return None
        used = self.kernels if kernels is None else kernels
        record = RunRecord(
            run=self.run_id,
            name=name,
            kernels=tuple(self.store.folder(kernel).name for kernel in used),
            prints=tuple(prints),
            findings=tuple(findings),
        )
        with self._collecting_problems():
            return self.store.put_run(record)
        return None

    @contextlib.contextmanager
    def collecting(self) -> Iterator[list[capture.Capture]]:
        """Kernels that this thread lowers meanwhile are captured, and not compiled yet."""
        before = getattr(self._local, "collected", None)
        collected: list[capture.Capture] = []
        self._local.collected = collected
        try:
            yield collected
        finally:
            self._local.collected = before

    def request(self, captures: Iterable[capture.Capture], wanted: Iterable[Target]) -> None:
        """Have kernels compiled, in the background; each once for each target."""
        for captured, target in itertools.product(list(captures), list(wanted)):
            with self._lock:
                asked = (captured.kernel.digest, target.name)
                if asked in self._requested:
                    continue
                self._requested.add(asked)
            self._futures.append(self._pool.submit(self._job(captured, target)))

    def start_compiler(self) -> None:
        """Start a compiler process ahead of the first kernel, in the background.

        Where the dump directory has kernels, all may come from there: then it is left until one
        does not.
        """
        if self.store is None or not any(self.store.root.glob("[!.]*")):
            self._pool.submit(self._pool.warm)

    def _job(self, captured: capture.Capture, target: Target) -> Callable[[], None]:
        return lambda: self._compile(captured, target)

    @contextlib.contextmanager
    def interpreting(self, mode: Mode | str) -> Iterator[None]:
        """Kernels run in another mode meanwhile: for one test or one call within the session.

        Raises:
          UsageError: no such mode.
        """
        mode = Mode.parse(mode)
        with contextlib.ExitStack() as stack:
            stack.enter_context(interpret.interpreting(mode, chosen=self._chosen))
            if mode.kind != "off" and not self._interprets:
                stack.enter_context(self._reports())
            yield

    @contextlib.contextmanager
    def checking(self, checks: Iterable[str]) -> Iterator[None]:
        """Kernels are checked for something else meanwhile, those too that were jitted before.

        Args:
          checks: names, as `checks/names.py` lists them; none to check for nothing.
        """
        before, self.observer.checks = self.observer.checks, tuple(checks)
        try:
            with contextlib.ExitStack() as stack:
                stack.enter_context(hook.epoch((self._identity, self.observer.checks)))
                if not (self.options.checks or self.options.prints):
                    stack.enter_context(observe.observing(self.observer))
                yield
        finally:
            self.observer.checks = before

    @contextlib.contextmanager
    def compiling_for(self, names: Iterable[str]) -> Iterator[None]:
        """Kernels that are lowered or run meanwhile are compiled for these targets.

        Raises:
          UnknownTargetError: a target that nobody knows.
        """
        before, self._wanted = self._wanted, resolve_targets(tuple(names), self.plugins)
        try:
            yield
        finally:
            self._wanted = before

    @contextlib.contextmanager
    def answering(self, target: Target) -> Iterator[None]:
        """Code that asks for its chip meanwhile gets this one; on a TPU it goes on getting that."""
        if platform.has_tpu():
            yield
            return
        with chip.answering_everywhere(target):
            yield

    @contextlib.contextmanager
    def separately(self) -> Iterator[None]:
        """What is found and printed meanwhile is kept apart from what was before, as for a test.

        `observer` begins anew; a fault that was told of before is told of again.
        """
        self.observer.clear()
        self.raised.clear()
        with self._reports():
            yield

    @contextlib.contextmanager
    def _reports(self) -> Iterator[None]:
        """What interpreters find goes to the observer, unless somebody else asks meanwhile."""
        token = object()

        def found(finding: Finding) -> None:
            if _reporting[-1:] == [token]:
                self.observer.found(finding)

        _reporting.append(token)
        try:
            with tpu_interpret.reporting(found, hang_after=self.options.hang_after):
                yield
        finally:
            _reporting.remove(token)

    def settle(self) -> None:
        """Wait for interpreted kernels that this thread began, and raise what went wrong there."""
        if _reporting:
            interpret.settle()

    def reset(self) -> None:
        """After an exception in a kernel: the interpreters keep their state otherwise."""
        interpret.reset()

    @property
    def _interprets(self) -> bool:
        return self._mode.kind != "off"

    def _chosen(self, kernel: str, why: str) -> None:
        """`auto` runs a kernel in TPU interpret mode. Called within jax: nothing may escape."""
        with self._collecting_problems():
            sentence = f"kernel `{kernel}` runs in TPU interpret mode: {why}"
            with self._lock:
                known = sentence in self._said
                self._said.add(sentence)
            if self._say is not None and not known:
                self._say(sentence)

    def worker_pids(self) -> list[int]:
        """Of the compiler processes that compile at the moment."""
        return self._pool.pids(at_work=True)

    # What the hook calls, within jax: nothing may escape.

    def lowered(self, primitive: str, context: Any, params: dict[str, Any]) -> object | None:
        with self._collecting_problems():
            captured = capture.capture(primitive, context, params)
            kernel = captured.kernel
            with self._lock:
                known = kernel.digest in self._captures
                self._captures.setdefault(kernel.digest, captured)
            if not known:
                self._tell(
                    "kernel_captured", kernel=kernel, jaxpr=captured.jaxpr, source=captured.source
                )
                if self.store is not None:
                    self.store.put_program(kernel, spell.program_of(captured))
                for finding in job.unprintable(captured) if self.targets else ():
                    self.observer.found(finding)
            collected: list[capture.Capture] | None = getattr(self._local, "collected", None)
            self._calls.setdefault(kernel.digest, set()).update(captured.calls)
            if collected is not None:
                collected.append(captured)
            else:
                self.request([captured], self._wanted)
            return kernel.digest
        return None

    def ran(self, tokens: tuple[object, ...]) -> None:
        with self._collecting_problems():
            for token in tokens:
                captured = self._captures.get(str(token))
                if captured is not None:
                    if self._wanted is not self.targets:  # jitted before these were asked for
                        self.request([captured], self._wanted)
                    self._tell("kernel_used", kernel=captured.kernel)

    def failed(self, error: Exception) -> None:
        self.raised.append(str(error))

    def calls(self, kernel: Kernel) -> frozenset[tuple[str, int]]:
        """Files and lines that were on the way to where the kernel was called."""
        return frozenset(self._calls.get(kernel.digest, ()))

    def _compile(self, captured: capture.Capture, target: Target) -> None:
        with self._collecting_problems():
            kernel = captured.kernel
            key = self._jobs.key(captured, target)
            claim = self.plugins.hook.pallas_debug_claim_compilation(kernel=kernel, target=target)
            with claim or contextlib.nullcontext():
                compilation = self.plugins.hook.pallas_debug_find_compilation(
                    kernel=kernel, target=target, key=key
                )
                if compilation is None:
                    self._compile_anew(captured, target, key)
                else:
                    self._finished(kernel, compilation, {})

    def _compile_anew(self, captured: capture.Capture, target: Target, key: str) -> None:
        kernel = captured.kernel
        try:
            with self._jobs.compile(captured, target, key) as (compilation, files):
                self._finished(kernel, compilation, files)
        except CannotRunError as error:
            self._compilations[kernel.digest, target.name] = self._jobs.unavailable(
                captured, target, key, error
            )
            raise

    def _finished(
        self, kernel: Kernel, compilation: Compilation, files: Mapping[str, bytes | Path]
    ) -> None:
        self._compilations[kernel.digest, compilation.target] = compilation
        self._tell("compilation_finished", kernel=kernel, compilation=compilation, files=files)

    def _tell(self, event: str, **kwargs: Any) -> None:
        for problem in notify(self.plugins, f"pallas_debug_{event}", **kwargs):
            self._add_problem(problem)

    def _epoch(self) -> object | None:
        if self.options.epoch is None:
            return None
        return (self.options.epoch, self.interpret_mode)

    @contextlib.contextmanager
    def _collecting_problems(self) -> Iterator[None]:
        """A crash of ours is not the program's: it is kept, and reported when the session ends."""
        try:
            yield
        except PallasDebugError as error:
            self._add_problem(error)
        except Exception as error:  # noqa: BLE001
            wrapped = PallasDebugError(
                f"pallas-debug failed on its own account: {type(error).__name__}: {error}. "
                "Your program is not at fault; please report it."
            )
            wrapped.__cause__ = error
            self._add_problem(wrapped)

    def _skipped(self, sentence: str) -> None:
        """A kernel is not checked as asked for."""
        with self._lock:
            self.unchecked.append(sentence)
        self._add_problem(PallasDebugError(sentence))

    def _add_problem(self, error: PallasDebugError) -> None:
        with self._lock:
            if str(error) not in {str(known) for known in self.problems}:
                self.problems.append(error)


def _mode(asked: Interpret) -> Mode:
    if asked is None:
        platform.leave_out_absent_tpu()
        return Mode("off" if platform.has_accelerator() else "auto")
    return Mode.parse(asked)


def resolve_targets(names: tuple[str, ...], plugins: Any) -> tuple[Target, ...]:
    """The targets of these names; `tpu` becomes that of this host's device.

    Raises:
      UnknownTargetError: a name that nobody knows.
      CannotRunError: `tpu` on a host without one.
    """
    if not names:
        return ()
    found = targets.resolve_all(names, extra_targets(plugins))
    return tuple(_of_this_host() if t.name == targets.DEVICE.name else t for t in found)


def _of_this_host() -> Target:
    kind = platform.device_kind()
    target = targets.of_device(kind)
    if target is None:
        raise CannotRunError(
            f"the target `tpu` is the TPU of this host, and jax's device here is {kind!r}. "
            "Name a generation instead, such as v5e."
        )
    return target
