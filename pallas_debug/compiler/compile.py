"""Conversion of a compiler's outcome to a `Compilation` and its files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pallas_debug import explain
from pallas_debug.compiler import switches as switch_names
from pallas_debug.compiler.pool import RequestOutcome
from pallas_debug.errors import CompiledWithOthersError
from pallas_debug.ir.chains import first_source_line
from pallas_debug.ir.operations import Module
from pallas_debug.model import Compilation, Failure, Kernel, Pass, SourceLine, Target
from pallas_debug.store import layout, raw

_FATAL = re.compile(
    r"F\d{4} (?!.*stack trace \*\*\*$)|.*(?:Check failed|LLVM (?:Fatal Error|ERROR)\b)"
)
"""Line that says why a compiler gave up: by its prefix, of level and date, or by its words."""

_PRINTED = re.compile(r"^(?P<location>loc\(.*\)): error: (?P<reason>.*)", re.MULTILINE)

Files = dict[str, bytes | Path]


def finished(
    kernel: Kernel,
    target: Target,
    outcome: RequestOutcome,
    *,
    key: str,
    num_devices: int,
    flags: tuple[str, ...],
    versions: Mapping[str, str],
    timeout: float,
    switches: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
    dumped: tuple[list[Pass], Files] | None = None,
) -> tuple[Compilation, Files]:
    """Convert the worker's outcome to a compilation, with the files to keep.

    Args:
      dumped: the passes and their files; by default those that libtpu dumped.
      switches: names of the enabled switches.
      notes: sentences to store with an executable.
    """
    passes, files = _of_libtpu(outcome) if dumped is None else dumped
    files[layout.LOG] = outcome.log
    failure = _failure(kernel, outcome, passes, files, timeout)
    if failure is not None:
        if failure.stage != "timeout":
            failure = switch_names.explained(failure, versions)
        failure = explain.explained(failure, kernel)
    reply = outcome.reply
    compilation = Compilation(
        kernel=kernel.name,
        target=target.name,
        status="failed" if failure else "ok",
        key=key,
        passes=tuple(passes),
        failure=failure,
        memory=reply.memory if reply else None,
        flags=flags,
        switches=switches,
        notes=() if failure else notes,
        seconds=round(reply.seconds, 6) if reply else None,
        device_kind=(reply.device_kind if reply else None) or target.device_kind,
        num_devices=num_devices,
        versions={**versions, **({"build": reply.build} if reply and reply.build else {})},
    )
    return compilation, files


def _of_libtpu(outcome: RequestOutcome) -> tuple[list[Pass], Files]:
    compiles = raw.compiles(outcome.dumps)
    raw_passes = compiles[-1].passes if compiles else ()
    passes: list[Pass] = []
    files: Files = {}
    for raw_pass, outlined in zip(raw_passes, raw.outline(raw_passes), strict=True):
        name = layout.pass_file(outlined.number, outlined.name) if outlined.changed else None
        if name is not None:
            files[name] = raw_pass.path
        passes.append(replace(outlined, file=name))
    return passes, files


def needs_others(failure: Failure) -> bool:
    """Return whether a kernel was skipped because it compiles only together with others."""
    return failure.type == CompiledWithOthersError.__name__


def _failure(
    kernel: Kernel, outcome: RequestOutcome, passes: list[Pass], files: Files, timeout: float
) -> Failure | None:
    reply = outcome.reply
    last = passes[-1].name if passes else None
    if reply is None:
        stage: Literal["timeout", "crash"] = "timeout" if outcome.ended == "timeout" else "crash"
        log = outcome.log.decode(errors="replace")
        if stage == "timeout":
            reached = f"after it wrote the pass {last}" if last else "before it wrote a pass"
            message = (
                f"the compiler was stopped after {timeout:g} s, {reached}: "
                f"{kernel.name} was not judged. Allow more time with --timeout (--pallas-timeout "
                f"in pytest){', or make the kernel smaller' if last else ''}."
            )
        else:
            words = last_words(log)
            message = (
                f"the compiler's process died of {outcome.ended} while it compiled {kernel.name}; "
                f"the last pass it wrote is {last or 'none'}. Its last output: {words or 'none'}"
            )
            if outcome.ended == "SIGKILL":  # we send it only for a timeout
                message += "\nMost likely the system killed it as memory ran out: try --jobs 1."
        return Failure(
            stage=stage,
            type=outcome.ended or "unknown",
            message=message,
            last_pass=last,
            source=first_source_line(log),
        )
    if reply.error is None:
        return None
    if reply.is_of_target:
        return Failure(
            stage="setup",
            type=reply.error_type or "unknown",
            message=reply.error,
        )
    message = reply.error
    if message.endswith("Pass pipeline failed"):  # jax 0.10 prints the reason, for Mosaic GPU
        for found in _PRINTED.finditer(outcome.log.decode(errors="replace")):
            message += f": {found['reason']}\n{found['location']}"
    source = first_source_line(message) or _failed_operation(passes, files)
    return Failure(
        stage="compile",
        type=reply.error_type or "unknown",
        message=message,
        last_pass=last,
        source=source,
    )


def last_words(log: str) -> str:
    """Return the line of a failed internal check, or the last non-empty line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    checks = [line for line in lines if _FATAL.match(line)]
    return (checks or lines or [""])[-1]


def _failed_operation(passes: list[Pass], files: Files) -> SourceLine | None:
    """For a message without a line, return the line of the failed pass if it has only one."""
    failed = next((p for p in passes if p.failed and p.file), None)
    path = files.get(failed.file) if failed and failed.file else None
    if not isinstance(path, Path):
        return None
    module = Module.of(path.read_text(errors="replace"), "mlir")
    named = {s.place: s for n in range(len(module.lines)) for s in module.source(n)}
    return next(iter(named.values())) if len(named) == 1 else None
