"""`pallas-debug dump`: compile the kernels of a script, module or function."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pallas_debug import defaults
from pallas_debug.cli import options as shared
from pallas_debug.cli import output, programs
from pallas_debug.cli.exits import Exit
from pallas_debug.errors import CannotRunError, PallasDebugError

if TYPE_CHECKING:
    from pallas_debug.model import Dump
    from pallas_debug.session import Session


@click.command("dump", context_settings={"allow_interspersed_args": False})
@shared.module
@shared.directory(
    "directory", "The dump directory; it is made when it does not exist.", Path(defaults.DIRECTORY)
)
@shared.targets(defaults.TARGETS)
@shared.args
@shared.spec
@click.option(
    "--interpret",
    metavar="MODE",
    help="Who runs the kernels of a script: auto, hlo, tpu, gpu, off, with parameters as in "
    "tpu,detect_races; auto where there is no accelerator.",
)
@click.option(
    "--switch",
    "switches",
    multiple=True,
    metavar="NAME",
    help="Asked of each compilation, joined by commas or repeated: "
    "log_recorder, bounds_checks, assertions, …",
)
@shared.timeout
@shared.jobs
@shared.as_json
@shared.what
@click.pass_context
def command(
    ctx: click.Context, /, what: str, rest: tuple[str, ...], args: tuple[str, ...], **options: Any
) -> int:
    """Compile the kernels of WHAT for TPU targets, and keep every stage as files.

    \b
    pallas-debug dump SCRIPT.py [ARGS]…
    pallas-debug dump -m package.module [ARGS]…
    pallas-debug dump package.module:function --arg 'bf16[1,2,512,128]' --arg causal=True
    pallas-debug dump pallas_debug_kernels:flash_attention

    A script or module is run, with its own ARGS, and every kernel that it lowers is compiled in
    the background; options of ours stand before WHAT. A function is not run: it is traced with
    abstract arguments. A bundled kernel has arguments of its own.
    """
    function = None if options["module"] else programs.named_function(what)
    if function is not None:
        if rest:  # options may also stand behind a function: it has no arguments of its own
            given = ["--arg=" + text for text in args] + _spelled(ctx, options)
            return command.main([*given, *rest, what], standalone_mode=False) or 0
        return _finish(_of_function(*function, args, options), options)
    programs.refuse_arguments(what, args, options["spec"])
    return _finish(_of_program(what, rest, options), options)


def _spelled(ctx: click.Context, options: dict[str, Any]) -> list[str]:
    """The options as they would be typed, for those that were given."""
    spelled: list[str] = []
    for parameter in ctx.command.params:
        name = parameter.name or ""
        source = ctx.get_parameter_source(name)
        if name not in options or source is None or source.name != "COMMANDLINE":
            continue
        value = options[name]
        if isinstance(value, bool):
            spelled.append(parameter.opts[-1])
        else:
            values = value if isinstance(value, tuple) else (value,)
            spelled += [f"{parameter.opts[-1]}={v}" for v in values]
    return spelled


def _of_function(
    module: str, name: str, args: tuple[str, ...], options: dict[str, Any]
) -> tuple[list[Dump], Path]:
    from pallas_debug._api.dump import dump

    try:
        function = programs.import_function(module, name)
    except PallasDebugError:
        raise
    except Exception as error:
        programs.print_their_traceback(error)
        raise CannotRunError(
            f"{module} raised {type(error).__name__} as it was imported: {error}"
        ) from error
    positional, keyword = programs.function_arguments(function, args, options["spec"])
    sessions: list[Session] = []

    with output.progress(
        lambda: len(sessions[0].dumps) * len(sessions[0].targets) if sessions else 0,
        lambda: sessions[0].queue.pending if sessions else 0,
    ) as tick:

        def tock(session: Session) -> None:
            sessions[:] = [session]
            tick()

        try:
            dumps = dump(
                function,
                *positional,
                targets=",".join(options["targets"]),
                to=options["directory"],
                timeout=options["timeout"],
                jobs=options["jobs"],
                switches=options["switches"],
                tick=tock,
                **keyword,
            )
        except PallasDebugError:
            raise
        except Exception as error:
            programs.print_their_traceback(error)
            raise CannotRunError(
                f"{module}:{name} raised {type(error).__name__} when it was traced with "
                f"{', '.join(args) or 'no arguments'}. Are shapes and dtypes what it expects?"
            ) from error
    return list(dumps), options["directory"].absolute()


def _of_program(
    what: str, rest: tuple[str, ...], options: dict[str, Any]
) -> tuple[list[Dump], Path]:
    programs.check_exists(what, module=options["module"])
    from pallas_debug._api.debug import Notice, say_mode
    from pallas_debug.compiler import switches, targets
    from pallas_debug.session import Options, Session

    session = Session(
        Options(
            dumps=options["directory"],
            targets=targets.split(",".join(options["targets"])) or ("",),
            interpret=options["interpret"],
            timeout=options["timeout"],
            jobs=options["jobs"],
            switches=switches.parse(options["switches"]),
        ),
        *([Notice()] if options["interpret"] is None else []),
        say=say_mode,
    )
    with session:
        problem = programs.run_program(what, rest, module=options["module"])
        session.record_run(" ".join(["-m", what] if options["module"] else [what]))
        with output.progress(
            lambda: len(session.dumps) * len(session.targets), lambda: session.queue.pending
        ) as tick:
            session.wait(tick)
    for error in session.problems:
        output.say(str(error))
    if problem is not None or session.problems:
        for line in _lines(session.kept, options):
            output.say(line)
        raise CannotRunError(problem or "not everything could be dumped; see above")
    if not session.dumps:
        raise CannotRunError(
            f"{what} called no Pallas kernel: nothing was dumped. Does it take another path "
            "off a TPU, or only define its kernels?"
        )
    return session.dumps, options["directory"].absolute()


def _finish(result: tuple[list[Dump], Path], options: dict[str, Any]) -> int:
    dumps, _ = result
    if options["as_json"]:
        output.print_json(dumps)
    for line in _lines(dumps, options):
        output.say(line)
    return Exit.OK if all(dump.ok for dump in dumps) else Exit.FAILED


def _lines(dumps: list[Dump], options: dict[str, Any]) -> list[str]:
    from pallas_debug.report import summary

    return summary(dumps, options["directory"].absolute())
