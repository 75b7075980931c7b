"""`pallas-debug dump`: compile the kernels of a script, module or function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from pallas_debug import followup, render
from pallas_debug.cli import options as shared
from pallas_debug.cli import output, programs
from pallas_debug.cli.exits import Exit
from pallas_debug.errors import CannotRunError, PallasDebugError, ProgramFailed, UsageError
from pallas_debug.findings import stops
from pallas_debug.render import finding_text

if TYPE_CHECKING:
    from pallas_debug.model import Dump, Finding
    from pallas_debug.session import Session


@dataclass(frozen=True, kw_only=True)
class DumpOptions(shared.ProgramOptions, shared.KeepOptions):
    as_json: bool = shared.as_json()


def run(options: DumpOptions) -> int:
    """Compile the kernels of WHAT for TPU targets, and save every stage as a file.

    \b
    pallas-debug dump SCRIPT.py [ARGS]…
    pallas-debug dump -m package.module [ARGS]…
    pallas-debug dump package.module:function --arg 'bf16[1,2,512,128]' --arg causal=True
    pallas-debug dump pallas_debug_kernels:flash_attention

    A script or module is run with its own ARGS, and every kernel that it lowers is compiled in the
    background; put options of `dump` before WHAT. A function is not run, but traced with abstract
    arguments. A bundled kernel has default arguments.
    """
    function = programs.function_of(options)
    with programs.pretending(options):
        if function is None:
            done = _of_program(options)
        else:
            done = _Dumped(_of_function(*function, options))
    if options.as_json:
        # Not `d.folder`: of a URL, that is a local copy, which is deleted.
        at = options.directory
        dumps = [{**vars(d), "folder": str(followup.within(at, d.name))} for d in done.dumps]
        output.print_json("dump", {"dumps": dumps, "findings": done.findings})
    for line in render.summary(done.dumps, options.directory) if done.dumps else ():
        output.message(line)
    if done.dumps and done.error is None and not options.as_json:
        is_seen = output.has_terminal()
        output.follow(followup.after_dump(done.dumps, options.directory, has_terminal=is_seen))
    if done.error is not None:
        raise done.error
    is_faulty = any(finding.counts for finding in done.findings)
    failed = [c.failure for dump in done.dumps for c in dump.compilations if not c.ok]
    if failed and not is_faulty and all(failure and failure.is_undecided for failure in failed):
        return Exit.CANNOT_RUN
    return Exit.FAILED if failed or is_faulty else Exit.OK


class _Command(click.Command):
    """Command whose WHAT ends its own options, as those after a script are the script's.

    A function has none, so options may follow it.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = False
        given, _, _ = self.make_parser(ctx).parse_args(list(args))
        what = given.get("what")
        is_function = isinstance(what, str) and programs.named_function(what) is not None
        ctx.allow_interspersed_args = is_function and not given.get("module")
        return super().parse_args(ctx, args)


command = shared.make("dump", DumpOptions, run, needs_jax=True, cls=_Command)


def _of_function(module: str, name: str, options: DumpOptions) -> list[Dump]:
    from pallas_debug._api.dump import dump

    function, positional, keyword = programs.function_call((module, name), options)
    doing = "tracing"

    def tick(session: Session) -> None:
        nonlocal doing
        doing = _progress(session)

    with output.status(lambda: doing), programs.running(options.what):
        dumps = dump(
            function,
            *positional,
            targets=",".join(options.targets),
            to=options.directory,
            timeout=options.timeout,
            jobs=options.jobs,
            switches=options.switches,
            stages=options.stages,
            tick=tick,
            **keyword,
        )
    return list(dumps)


def _progress(session: Session) -> str:
    total = len(session.dumps) * len(session.targets)
    return f"compiled {total - session.queue.pending} of {total}"


@dataclass(frozen=True)
class _Dumped:
    """The kernels of a function or program.

    Attributes:
      findings: what the interpreters found when running the kernels of a program.
      error: why the program, or writing the dumps, stopped before the end.
    """

    dumps: Sequence[Dump]
    findings: Sequence[Finding] = ()
    error: PallasDebugError | None = None


def _of_program(options: DumpOptions) -> _Dumped:
    """Run a program, and dump its kernels."""
    what = options.what
    from pallas_debug._api.debug import Prints
    from pallas_debug.compiler import stages, switches, targets
    from pallas_debug.session import Options, Session, only_defines

    session = Session(
        Options(
            dumps=options.directory,
            targets=targets.split(",".join(options.targets)) or ("",),
            timeout=options.timeout,
            jobs=options.jobs,
            prints=True,
            switches=switches.parse(options.switches),
            stages=stages.parse(options.stages),
        ),
        Prints(),
    )
    with session:
        error = programs.execute(what, options.rest, module=options.module)
        try:
            session.wait_for_runs()
        except Exception as late:  # noqa: BLE001 - what an interpreter raises is of any class
            error = error or late
        problem = programs.ended(what, error)
        try:
            with output.status(lambda: _progress(session)):
                session.wait()
        finally:  # afterwards, because the record lists what was not compiled
            name, seen = " ".join(["-m", what] if options.module else [what]), session.observer
            session.record_run(name, prints=seen.records, findings=seen.findings)
    findings = session.observer.findings
    for finding in findings:
        if not stops.is_stop(finding, error):  # the traceback has its text
            output.message(finding_text(finding))
    for error in session.problems:
        output.message(str(error))
    if problem is not None:
        kept = "the kernels that it had lowered were kept" if session.kept else "nothing was dumped"
        return _Dumped(session.kept, findings, ProgramFailed(f"{problem}; {kept}"))
    if session.problems:
        cut = CannotRunError("not everything could be dumped; see above")
        return _Dumped(session.kept, findings, cut)
    if not session.dumps:
        raise UsageError(
            f"{what} called no Pallas kernel: nothing was dumped. "
            + only_defines(what, "--pallas-dump")
        )
    return _Dumped(session.dumps, findings)
