"""Compilation with optional flags: if the compiler aborts on a flag, compile again without it.

libtpu's cycle estimate aborts the process on some kernels ("Unsupported DMA direction: 10 on
VL/VLP") and takes minutes on others, and another libtpu may not know a flag at all. None of this is
the kernel's fault.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from pallas_debug import defaults
from pallas_debug.compiler import schedules
from pallas_debug.compiler.compile import Files, last_words
from pallas_debug.compiler.pool import Pool, RequestOutcome
from pallas_debug.compiler.stages import (
    ESTIMATE_TO,
    LLO_DUMP_TO,
    ChildFlags,
    LeftOut,
    Stages,
    child_flags,
    matches,
)
from pallas_debug.model import Compilation, MissingFile
from pallas_debug.store import layout, raw

_REFUSED = re.compile(r"Unknown command line flag '(?P<u>\w+)'|specified for flag '(?P<i>\w+)'")

_ESTIMATING = re.compile(r"Static LLO profiling of \S+ failed")

_LOG_PREFIX = re.compile(r"^[A-Z]\d{4} \S+ +\d+ \S+\] ")
"""Level, date, time, thread and place of a line of libtpu's log."""

_STOPPED = ("SIGKILL", "SIGTERM")
"""Ways in which a process ends that are unrelated to its flags."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """The last attempt to compile a module.

    Attributes:
      dumped: the attempt whose LLO files are kept; the last one, or, for a kernel on which the
        compiler dies with any flags, the last one that wrote some.
      left_out: flags that earlier attempts failed on, in order.
    """

    outcome: RequestOutcome
    dumped: RequestOutcome
    left_out: tuple[LeftOut, ...] = ()

    def files(self, stages: Stages) -> Files:
        """Return the files of these stages, by their path below the target's folder."""
        return schedules.of_kernel(self.dumped.llo, stages, since=self.dumped.began)

    def missing(
        self, stages: Stages, files: Collection[str], compilation: Compilation
    ) -> tuple[MissingFile, ...]:
        """Return the files of these stages that are not among `files`, each with the reason.

        A kernel that failed has what was written until then, and nothing is missing.
        """
        if not compilation.ok:
            return ()
        is_sparse = layout.SPARSECORE in files
        wanted = layout.EXPECTED_FILES if stages.bundles and not is_sparse else ()
        if stages.estimate:
            wanted = (*wanted, layout.ESTIMATE)
        absent = [name for name in wanted if name not in files]
        names = [layout.llo_pass(name) for name in files if name.startswith(f"{layout.LLO}/")]
        for pattern in stages.llo:
            if not any(matches(pattern, name) for name in names):
                absent.append(layout.LLO if pattern == "*" else f"{layout.LLO}/*-{pattern}.txt")
        return tuple(map(self._missing, absent))

    def _missing(self, file: str) -> MissingFile:
        for left_out in self.left_out:
            # The estimate depends on its own flag; all files depend on the dump as a whole.
            needed = (ESTIMATE_TO, LLO_DUMP_TO) if file == layout.ESTIMATE else (LLO_DUMP_TO,)
            flag = next((name for name in needed if name in left_out.flags), None)
            if flag is not None:
                return MissingFile(
                    file=file, cause=left_out.cause, flag=f"--{flag}", message=left_out.message
                )
        return MissingFile(file=file, cause="unwritten")


@contextlib.contextmanager
def compiled(
    pool: Pool,
    stages: Stages,
    module: bytes,
    *,
    topology: str | None,
    num_devices: int,
    options: Mapping[str, str],
) -> Iterator[Attempt]:
    """Compile a module with as many of the flags of `stages` as the compiler survives.

    The files of the attempt exist until the context exits.

    Raises:
      WorkerError, LibtpuError: as for `Pool.compile`.
    """
    with contextlib.ExitStack() as stack:
        wanted = child_flags(stages)
        left_out = list(dict.fromkeys(filter(None, map(pool.left_out.get, wanted.names))))
        flags = wanted.without(name for one in left_out for name in one.flags)
        dumped: RequestOutcome | None = None
        while True:
            outcome = stack.enter_context(
                pool.compile(
                    module,
                    topology=topology,
                    num_devices=num_devices,
                    options=options,
                    flags=flags,
                    timeout=defaults.ESTIMATE_TIMEOUT if ESTIMATE_TO in flags.names else None,
                )
            )
            blamed = _blamed(outcome, flags)
            if blamed is None:
                break
            left_out.append(blamed)
            if outcome.reply is None and blamed.cause == "refused":
                pool.left_out |= dict.fromkeys(blamed.flags, blamed)
            flags = flags.without(blamed.flags)
            dumped = outcome if outcome.llo else dumped
        died = outcome.reply is None
        yield Attempt(
            outcome=outcome,
            dumped=dumped if died and dumped is not None else outcome,
            left_out=tuple(left_out),
        )


def _blamed(outcome: RequestOutcome, flags: ChildFlags) -> LeftOut | None:
    """Return the flags to leave out; None if flags are not the reason for the failure."""
    if not flags or outcome.ended in _STOPPED:
        return None
    if outcome.reply is not None:
        error = outcome.reply.error or ""
        named = tuple(name for name in flags.names if name in error)
        return LeftOut(flags=named, cause="refused", message=error) if named else None
    if outcome.ended == "timeout":
        return _overdue(flags)
    log = outcome.log.decode(errors="replace")
    message = _LOG_PREFIX.sub("", last_words(log))
    if match := _REFUSED.search(log):
        refused = match["u"] or match["i"]
        if refused in flags.names:
            names = flags.names if refused == LLO_DUMP_TO else (refused,)
            return LeftOut(flags=names, cause="refused", message=message)
    # XLA's copies around a kernel may be estimated before the kernel is compiled.
    is_of_estimate = _ESTIMATING.search(log) or any(c.whole for c in raw.compiles(outcome.dumps))
    if is_of_estimate and ESTIMATE_TO in flags.names:
        return LeftOut(flags=(ESTIMATE_TO,), cause="aborted", message=message)
    return LeftOut(flags=flags.names, cause="aborted", message=message)


def _overdue(flags: ChildFlags) -> LeftOut | None:
    """Return the flag of the estimate, if it was requested, to blame for a timeout."""
    if ESTIMATE_TO not in flags.names:
        return None
    message = (
        "the estimate, for which libtpu simulates the whole grid, was not finished after "
        f"{defaults.ESTIMATE_TIMEOUT:g} s"
    )
    return LeftOut(flags=(ESTIMATE_TO,), cause="timeout", message=message)
