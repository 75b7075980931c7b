"""The command to run next: what each outcome of a command, a finding or a failed test leads to.

All `next:` lines come from here. A command is complete: a shell takes it as it is.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from pallas_debug.render import relative, typed

if TYPE_CHECKING:
    from pallas_debug.model import Compilation, Dump, Finding

LABEL = "next: "
"""What a line with the command begins with."""


VERIFY = "--pallas-verify"
"""Option of pytest."""

BUNDLED = "pallas_debug_kernels:matmul"
"""A kernel that can be tried on every machine."""


def command(*words: str | PurePath) -> str:
    """Return the command line of `pallas-debug` with these words, quoted for a shell.

    Args:
      words: paths are written so that they are no options, if they start with a dash.
    """
    quoted = (typed(word) if isinstance(word, PurePath) else shlex.quote(word) for word in words)
    return " ".join(["pallas-debug", *quoted])


def within(root: Path | str, *names: str) -> Path | str:
    """Return the place of a kernel in a dump directory or at its URL."""
    return root / Path(*names) if isinstance(root, Path) else "/".join([root.rstrip("/"), *names])


def after_failure(folder: Path | str, compilation: Compilation) -> str:
    """Command for a compilation that failed: its explanation, or what reproduces it."""
    failure = compilation.failure
    if failure is not None and failure.explanation is not None:
        return command("explain", folder)
    return command("reproduce", folder, "-t", compilation.target, "-o", "reproduce.py")


def first_failure(
    kernels: Iterable[tuple[Path | str, Iterable[Compilation | None]]],
) -> str | None:
    """Command for the first compilation that failed; None if there is none.

    Args:
      kernels: the place and the compilations of each; None for one that cannot be read.
    """
    for place, compilations in kernels:
        for made in compilations:
            if made is not None and not made.ok:
                return after_failure(place, made)
    return None


def after_dump(dumps: Sequence[Dump], root: Path | str, *, has_terminal: bool) -> str:
    """Command for kernels that were dumped: of the first that failed, or a look at all of them."""
    if isinstance(root, Path):
        root = Path(relative(root.absolute()))
    kernels = ((within(root, dump.name), dump.compilations) for dump in dumps)
    look = command("browse" if has_terminal else "report", root)
    return first_failure(kernels) or look


def after_findings(
    findings: Sequence[Finding], program: Sequence[str], root: Path | str | None = None
) -> str | None:
    """Command for what was found in a program's kernels: where it happens, or why it is refused.

    Args:
      findings: as they are shown, the first of which is the cause of others.
      program: what was run, as words of a command line: `rows:double --arg f32[8,128]`.
      root: the dump directory of its kernels, if they were kept.

    Returns:
      None if nothing was found.
    """
    for finding in findings:
        if "machine" in finding.engines:
            return command("step", "-x", "-k", finding.kernel, *program)
    for finding in findings:
        if "compile" in finding.engines:
            return command("dump", *program) if root is None else command("explain", root)
        if "trace" in finding.engines:
            return command("explain", str(finding.kind))
    return command("step", "-k", findings[0].kernel, *program) if findings else None


def after_stats(folder: Path, target: str, *, is_one: bool) -> str:
    """Command after the costs of a kernel, or of several: the lines, or the costliest kernel."""
    shown = ("source", "--cost") if is_one else ("stats",)
    return command(*shown, Path(relative(folder.absolute())), "-t", target)


def after_step(program: Sequence[str], test: str | None) -> str:
    """Command for a program, or its test, after its kernel was stepped through."""
    return command("verify", *program) if test is None else f"pytest {typed(test)} {VERIFY}"


def after_verdict(
    findings: Sequence[Finding],
    program: Sequence[str],
    root: Path | str,
    *,
    verified: Sequence[str] = (),
    is_complete: bool,
) -> str:
    """Command for the verdict on a program: at its first finding; else what is left to look at.

    Args:
      program, root: as for `after_findings`.
      verified: options for `verify`, if it should judge more next.
      is_complete: whether everything was judged.
    """
    if found := after_findings(findings, program, root):
        return found
    if verified:
        return command("verify", *verified, *program)
    return command("stats" if is_complete else "report", root)


def after_test(
    test: str,
    findings: Sequence[Finding],
    kernels: Sequence[str],
    folder: Path | None = None,
    *,
    is_verified: bool,
) -> str:
    """Command for a failed test.

    Without a finding, its values are wrong: judged by every engine, or else step by step.

    Args:
      test: its file and name, as pytest takes them: `tests/test_rows.py::test_sum[8]`.
      kernels: names of its kernels.
      folder: where its first faulty kernel was dumped, if it was.
      is_verified: whether its kernels were verified.
    """
    engines = {engine for finding in findings for engine in finding.engines}
    if "compile" in engines and "machine" not in engines and folder is None:
        return f"pytest {typed(test)} --pallas-dump"
    if found := after_findings(findings, [test], folder):
        return found
    if is_verified and kernels:
        return command("step", "-k", kernels[-1], test)
    return f"pytest {typed(test)} {VERIFY}"


def after_doctor(*, is_fine: bool) -> str:
    """Command for a machine that was examined: a first kernel, or the whole list of checks."""
    return command("verify", BUNDLED) if is_fine else command("doctor", "-v")
