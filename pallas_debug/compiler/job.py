"""Compilation of one kernel for one target: lowering in this process, the rest in a child."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace

from pallas_debug.bridge import versions
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.instrument import printing
from pallas_debug.bridge.lowering import lower
from pallas_debug.compiler import attempts, gpu, gpu_files, switches, targets
from pallas_debug.compiler import compile as compile_
from pallas_debug.compiler.child import MOSAIC_FLAGS, user_flags
from pallas_debug.compiler.pool import Pool
from pallas_debug.compiler.stages import BUNDLES, NONE, ChildFlags, Stages
from pallas_debug.explain import explained
from pallas_debug.model import Compilation, Failure, SourceLine, Target
from pallas_debug.store import layout


class Jobs:
    """Compiles kernels with the options of one session.

    Args:
      pool: the compiler processes.
      wanted: names of switches, as returned by `switches.parse`.
    """

    def __init__(self, pool: Pool, wanted: tuple[str, ...] = ()) -> None:
        self._pool = pool
        self._switches = wanted
        self._flags = tuple(user_flags())

    def key(self, captured: Capture, target: Target) -> str:
        """Cache key: everything that affects the result, including lines, versions and flags."""
        content = json.dumps(
            [
                captured.kernel.digest,
                _place(captured.kernel.source),
                captured.jaxpr,
                captured.enable_x64,
                target.topology,
                versions.installed(),
                self._flags,
                MOSAIC_FLAGS,
                self._switches,
                *([gpu.identity()] if target.platform == "cuda" else []),
            ]
        )
        return hashlib.sha256(content.encode(errors="replace")).hexdigest()

    @contextlib.contextmanager
    def compile(
        self, captured: Capture, target: Target, key: str, stages: Stages = NONE
    ) -> Iterator[tuple[Compilation, compile_.Files]]:
        """Compile, and yield the compilation with its files, which exist until the context exits.

        Args:
          stages: stages to keep besides Mosaic's.

        Raises:
          CannotRunError: nothing can be compiled here.
        """
        self._pool.warm(flags_of(target))
        try:
            settings = switches.lowering_settings(self._switches)
            lowered = lower.lower(captured, target, settings=settings)
        except lower.LoweringFailed as error:
            log = error.failure.message.encode(errors="replace") + b"\n"
            failure = switches.explained(error.failure, versions.installed())
            made = self.refused(captured, target, key, failure)
            yield replace(made, stages=stages.names), {layout.LOG: log}
            return
        compiled = self._compiled if target.platform == "tpu" else self._compiled_for_gpu
        with compiled(captured, target, key, lowered, stages) as result:
            yield result

    def refused(self, captured: Capture, target: Target, key: str, failure: Failure) -> Compilation:
        """Return the compilation of a kernel that did not reach the compiler."""
        return Compilation(
            kernel=captured.kernel.name,
            target=target.name,
            status="failed",
            key=key,
            failure=explained(failure, captured.kernel),
            device_kind=target.device_kind,
            versions=versions.installed(),
            switches=self._switches,
        )

    @contextlib.contextmanager
    def _compiled(
        self, captured: Capture, target: Target, key: str, lowered: lower.Lowered, stages: Stages
    ) -> Iterator[tuple[Compilation, compile_.Files]]:
        with attempts.compiled(
            self._pool,
            stages,
            lowered.module,
            topology=targets.for_devices(target, lowered.num_devices),
            num_devices=lowered.num_devices,
            options=switches.compile_options(self._switches),
        ) as attempt:
            compilation, files = compile_.finished(
                captured.kernel,
                target,
                attempt.outcome,
                key=key,
                num_devices=lowered.num_devices,
                flags=(*self._flags, *MOSAIC_FLAGS),
                versions=versions.installed(),
                timeout=self._pool.settings.timeout,
                switches=self._switches,
                notes=self._notes(captured),
            )
            dumped = attempt.files(stages)
            compilation = replace(
                compilation,
                stages=stages.names,
                missing=attempt.missing(stages, dumped, compilation),
            )
            files |= dumped
            files[layout.STABLEHLO] = lowered.stablehlo.encode(errors="replace")
            files[layout.MOSAIC] = lowered.mosaic.encode(errors="replace")
            yield compilation, files

    @contextlib.contextmanager
    def _compiled_for_gpu(
        self, captured: Capture, target: Target, key: str, lowered: lower.Lowered, stages: Stages
    ) -> Iterator[tuple[Compilation, compile_.Files]]:
        compiling = functools.partial(
            self._pool.compile,
            lowered.module,
            topology=target.name,
            num_devices=lowered.num_devices,
            flags=gpu.flags(target),
        )
        with contextlib.ExitStack() as stack:
            outcome = stack.enter_context(compiling())
            notes = (*gpu.notes(), *self._without_effect(stages))
            if outcome.reply is None and gpu.died_of_lines(outcome.dumps):
                outcome = stack.enter_context(compiling(options=gpu.WITHOUT_LINES))
                notes = (*notes, gpu.NO_LINES)
            has_failed = outcome.reply is None or outcome.reply.error is not None
            compilation, files = compile_.finished(
                captured.kernel,
                target,
                outcome,
                key=key,
                num_devices=lowered.num_devices,
                flags=tuple(gpu.user_flags()),
                versions={**versions.installed(), **gpu.installed()},
                timeout=self._pool.settings.timeout,
                switches=self._switches,
                notes=notes,
                dumped=gpu_files.of_dumps(outcome.dumps, lowered.texts, has_failed=has_failed),
            )
            files[layout.STABLEHLO] = lowered.stablehlo.encode(errors="replace")
            yield replace(compilation, stages=stages.names), files

    def _without_effect(self, stages: Stages) -> tuple[str, ...]:
        """Note on what was asked for and is for TPUs alone."""
        names = [*self._switches, *(name for name in stages.names if name != BUNDLES)]
        return (f"{', '.join(names)} had no effect: for TPUs alone",) if names else ()

    def _notes(self, captured: Capture) -> tuple[str, ...]:
        """Notes on the prints of a kernel that compiled."""
        is_seen = switches.is_recorded(self._switches, self._flags)
        return () if is_seen or not printing.prints(captured.params) else (switches.NOT_RECORDED,)


def flags_of(target: Target | None) -> ChildFlags | None:
    """Flags of the children that compile for a target; None for those of the pool."""
    return gpu.flags(target) if target is not None and target.platform == "cuda" else None


def _place(source: SourceLine | None) -> str:
    return "" if source is None else str(replace(source, text=None))
