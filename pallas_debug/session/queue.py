"""Writing and compilation of captured kernels in the background.

Each kernel is compiled once per target, unless the dump directory already contains the result.
Results go to the dump directory through `Stored`.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from pallas_debug.bridge import unparse
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.walk.block_map import block_map
from pallas_debug.compiler import job
from pallas_debug.compiler import stages as stage_names
from pallas_debug.compiler import switches as switch_names
from pallas_debug.compiler.compile import needs_others
from pallas_debug.compiler.pool import Pool, PoolSettings, default_jobs
from pallas_debug.errors import PallasDebugError
from pallas_debug.guards import guarded
from pallas_debug.model import Compilation, Gap, Kernel, Target
from pallas_debug.profile.blocks import BlockMap
from pallas_debug.session.options import Options
from pallas_debug.store.writer import Store

Report = Callable[[PallasDebugError], None]


class Stored:
    """Stores the results of a session in a dump directory, if it has one.

    Kernels are written in order by a thread, because flushing files takes longer than tracing, and
    written even if the session is stopped.

    Args:
      report: called with the errors of writing kernels.
    """

    def __init__(self, store: Store | None, report: Report) -> None:
        self._store = store
        self._report = report
        self._forget()

    def _forget(self) -> None:
        self._process = os.getpid()
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "pallas-debug-store")
        self._writes: dict[str, concurrent.futures.Future[None]] = {}

    def put_kernel(self, captured: Capture) -> None:
        """Write a kernel, the kernel as a program, and its block map."""
        kernel, store = captured.kernel, self._store
        if store is None:
            return
        program: str | None = None
        blocks: BlockMap | None = None
        with guarded("capture", f"writing kernel `{kernel.name}` as a program", self._report):
            program = unparse.program_of(captured)
        with guarded("capture", f"mapping the blocks of kernel `{kernel.name}`", self._report):
            blocks = block_map(captured)

        def write() -> None:
            with guarded("store", f"writing kernel `{kernel.name}`", self._report):
                store.put_kernel(
                    kernel,
                    jaxpr=captured.jaxpr,
                    source=captured.source,
                    program=program,
                    blocks=blocks,
                )

        if self._process != os.getpid():  # forked: the thread exists only in the parent
            self._forget()
        self._writes[kernel.digest] = self._thread.submit(write)

    def wait(self, kernel: Kernel | None = None) -> None:
        """Wait until a kernel is written; by default, until all are."""
        if self._process == os.getpid():
            writes = dict(self._writes)  # other threads add to it
            if kernel is None:
                concurrent.futures.wait(writes.values())
            elif kernel.digest in writes:
                concurrent.futures.wait([writes[kernel.digest]])

    def close(self) -> None:
        """Finish writing, and end the thread."""
        if self._process == os.getpid():
            self._thread.shutdown()

    def put_compilation(
        self, kernel: Kernel, compilation: Compilation, files: Mapping[str, bytes | Path]
    ) -> None:
        """Write a compilation, unless it was found in the store."""
        if self._store is not None and not compilation.cached:
            self.wait(kernel)  # a compilation without its kernel could not be read
            self._store.put_compilation(kernel, compilation, files)


class Queue:
    """Compiles kernels in the background, unless the store has an equal compilation.

    `made` holds the finished compilations by digest and target, `lost` the errors that prevented
    others.
    """

    def __init__(
        self,
        options: Options,
        stored: Stored,
        report: Report,
        store: Store | None,
    ) -> None:
        self.made: dict[tuple[str, str], Compilation] = {}
        self.lost: dict[tuple[str, str], PallasDebugError] = {}
        self._stored = stored
        self._report = report
        self._store = store
        self._lock = threading.Lock()
        self._requested: dict[tuple[str, str], Kernel] = {}
        self._elsewhere: dict[tuple[str, str], Kernel] = {}
        self._futures: list[concurrent.futures.Future[object]] = []
        settings = PoolSettings(jobs=options.jobs or default_jobs(), timeout=options.timeout)
        self._stages = options.stages if store is not None else stage_names.NONE
        flags = stage_names.child_flags(self._stages)
        self._pool = Pool(settings, shared=True, flags=flags)
        self._jobs = job.Jobs(self._pool, switch_names.parse(options.switches))

    def compile_whole(self, module: bytes, target: Target) -> concurrent.futures.Future[object]:
        """Compile a program with labelled kernels; the future returns the compiler's `Reply`.

        It returns None if the compiler died, and nothing is stored.
        """

        def compile_it() -> object:
            with self._pool.compile(module, topology=target.topology, wants_calls=True) as outcome:
                return outcome.reply

        self._futures.append(self._pool.submit(compile_it))
        return self._futures[-1]

    def finished(self, targets: Iterable[Target]) -> dict[str, list[Compilation]]:
        """Return the finished compilations by digest of the kernel, in the order of `targets`."""
        made = dict(self.made)  # other threads add to it
        order = list(dict.fromkeys([*(t.name for t in targets), *(name for _, name in made)]))
        found: dict[str, list[Compilation]] = {}
        for (digest, _), one in sorted(made.items(), key=lambda item: order.index(item[0][1])):
            found.setdefault(digest, []).append(one)
        return found

    def compiled(self) -> list[tuple[Kernel, Compilation]]:
        """Return the finished compilations with their kernels, in order of completion."""
        made = dict(self.made)  # other threads add to it
        return [(self._requested[of], one) for of, one in made.items()]

    def start(self, target: Target | None) -> None:
        """Start a compiler process ahead of the first kernel, for a target if there is one."""
        self._pool.submit(functools.partial(self._pool.warm, job.flags_of(target)))

    def close(self, *, stop: bool) -> None:
        """Release the compiler processes; with `stop`, abort their compilations."""
        self._pool.close(stop=stop)

    def request(self, captures: Iterable[Capture], wanted: Iterable[Target]) -> None:
        """Compile kernels, each once per target."""
        for captured, target in itertools.product(list(captures), list(wanted)):
            with self._lock:
                asked = (captured.kernel.digest, target.name)
                if asked in self._requested:
                    continue
                self._requested[asked] = captured.kernel
            with self._compiling(captured.kernel, target):
                compile_it = functools.partial(self._compile, captured, target)
                self._futures.append(self._pool.submit(compile_it))

    def request_traced(self, captured: Capture, wanted: Iterable[Target]) -> None:
        """Compile a kernel for those targets for which it may have been traced.

        If the code queried its chip, it may call another kernel on the other targets: see
        `elsewhere`.
        """
        kernel, fitting = captured.kernel, list[Target]()
        for target in wanted:
            if kernel.chip in (None, target.device_kind):
                fitting.append(target)
            else:
                self._elsewhere[kernel.digest, target.name] = kernel
        self.request([captured], fitting)

    def elsewhere(self) -> list[Gap]:
        """Kernels that were not compiled for a target because they were traced for another chip."""
        return [
            Gap(kernel=kernel.name, engine=target, reason=reason, is_limit=True)
            for (digest, target), kernel in list(self._elsewhere.items())
            if (reason := self.why_elsewhere(digest, target)) is not None
        ]

    def why_elsewhere(self, digest: str, target: str) -> str | None:
        """Explain why a kernel that was traced for another chip was not compiled for a target."""
        kernel = self._elsewhere.get((digest, target))
        if kernel is None or (digest, target) in self._requested:
            return None
        return (
            f"the code queried its chip and got {kernel.chip}; "
            f"for {target} it may call another kernel"
        )

    @property
    def pending(self) -> int:
        """Number of requested compilations that are not finished."""
        return sum(not f.done() for f in self._futures)

    def wait(self, tick: Callable[[], None] | None = None) -> None:
        """Wait for every requested compilation, calling `tick` meanwhile."""
        while unfinished := [f for f in self._futures if not f.done()]:
            concurrent.futures.wait(unfinished, timeout=0.1 if tick else None)
            if tick:
                tick()

    def not_compiled(self, kernel: Kernel, target: str) -> str:
        """Explain why a kernel has no compilation for a target."""
        known = self.lost.get((kernel.digest, target))
        if known is not None:
            return str(known)
        if (kernel.digest, target) in self._requested:
            return "the session ended before it was compiled"
        return f"it was never sent to the compiler for {target}"

    def uncompiled(self, kernels: Iterable[Kernel], *, has_ended: bool = True) -> Iterator[Gap]:
        """Yield requested compilations that failed for reasons other than the kernel.

        Possible reasons are a missing compiler or lock, a full disk, or a bug.

        Args:
          has_ended: whether compilations without a result count.
        """
        wanted = {kernel.digest for kernel in kernels}
        requested = dict(self._requested)  # other threads add to it
        for (digest, target), kernel in sorted(requested.items(), key=lambda item: item[0]):
            made, reason, limit = self.made.get((digest, target)), None, False
            if made is None:
                is_known = has_ended or (digest, target) in self.lost
                reason = self.not_compiled(kernel, target) if is_known else None
            elif made.failure is not None and made.failure.is_undecided:
                reason, limit = made.failure.headline, needs_others(made.failure)
            if digest in wanted and reason is not None:
                yield Gap(kernel=kernel.name, engine=target, reason=reason, is_limit=limit)

    def _compile(self, captured: Capture, target: Target) -> None:
        kernel = captured.kernel
        with self._compiling(kernel, target):
            key = self._jobs.key(captured, target)
            claim = (
                contextlib.nullcontext()
                if self._store is None
                else self._store.claim(kernel, target.name)
            )
            with claim:
                compilation = self._found(kernel, target, key)
                kept = stage_names.of(compilation) if compilation else stage_names.NONE
                # A kernel that jax cannot lower has no stages to add.
                is_lowered = not (compilation and _is_refused(compilation))
                if compilation is None or (is_lowered and not kept.covers(self._stages)):
                    # Keep stages from earlier runs too: the folder is replaced as a whole.
                    with self._jobs.compile(captured, target, key, kept | self._stages) as made:
                        self._finished(kernel, *made)
                else:
                    self._finished(kernel, compilation, {})

    @contextlib.contextmanager
    def _compiling(self, kernel: Kernel, target: Target) -> Iterator[None]:
        """Report an error that prevents a compilation, and record it as the reason."""

        def report(problem: PallasDebugError) -> None:
            self._report(problem)
            self.lost[kernel.digest, target.name] = problem

        with guarded("lower", f"compiling kernel `{kernel.name}` for {target.name}", report):
            yield

    def _found(self, kernel: Kernel, target: Target, key: str) -> Compilation | None:
        """Return an earlier compilation; None if there is none or the lookup fails."""
        if self._store is None:
            return None
        doing = f"looking for kernel `{kernel.name}` in the dump directory"
        with guarded("store", doing, self._report):
            return self._store.find_compilation(kernel, target.name, key)
        return None

    def _finished(
        self, kernel: Kernel, compilation: Compilation, files: Mapping[str, bytes | Path]
    ) -> None:
        self.made[kernel.digest, compilation.target] = compilation
        with guarded("store", f"writing a compilation of kernel `{kernel.name}`", self._report):
            self._stored.put_compilation(kernel, compilation, files)


def _is_refused(compilation: Compilation) -> bool:
    return compilation.failure is not None and compilation.failure.stage == "lowering"
