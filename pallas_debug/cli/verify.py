"""`pallas-debug verify`: one verdict on the kernels of a function, script or module."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pallas_debug.cli import output, programs
from pallas_debug.cli.exits import Exit
from pallas_debug.errors import CannotRunError, UsageError

if TYPE_CHECKING:
    from pallas_debug.verified import Verdict


@click.command("verify")
@click.option(
    "-t",
    "--target",
    "targets",
    multiple=True,
    default=["all"],
    show_default=True,
    help="Chips, joined by commas or repeated. See `targets`.",
)
@click.option(
    "-a", "--arg", "args", multiple=True, help="For a function: bf16[1,2,512,128], 128, causal=True"
)
@click.option("--spec", help="For a bundled kernel: its spec of this name; the first unless told.")
@click.option("-m", "--module", is_flag=True, help="WHAT is a module, as for `python -m`.")
@click.option(
    "-e",
    "--engine",
    "engines",
    multiple=True,
    metavar="NAME",
    help="Ask only these: static, compile, checks, races; joined by commas or repeated.",
)
@click.option(
    "--suppress",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Findings that do not count, with reasons; pallas-debug.toml here, where there is one.",
)
@click.option(
    "-o", "--to", type=click.Path(path_type=Path), help="Keep the compilations in this directory."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=120.0,
    show_default=True,
    help="Seconds that one compilation may take.",
)
@click.option(
    "-j", "--jobs", type=click.IntRange(min=0), default=0, help="Compiler processes; 0: per core."
)
@click.option("--json", "as_json", is_flag=True, help="As JSON on standard output.")
@click.option(
    "--sarif",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the findings to this file for code scanning, as SARIF 2.1.0.",
)
@click.option("--github", is_flag=True, help="Annotate the code in a GitHub workflow.")
@click.argument("what")
@click.argument("rest", nargs=-1, type=click.UNPROCESSED)
def command(what: str, rest: tuple[str, ...], **options: Any) -> int:
    """Say whether the kernels of WHAT work, on which chips, and if not, why.

    \b
    pallas-debug verify package.module:function --arg 'bf16[1,2,512,128]' --arg causal=True
    pallas-debug verify pallas_debug_kernels:flash_attention
    pallas-debug verify SCRIPT.py [ARGS]…
    pallas-debug verify -m package.module [ARGS]…

    The static analysis, jax's lowering and libtpu for each target, the checks and the race
    detector are asked; each fault is said once, whoever saw it. A function is traced and run, with
    values that are made up where `--arg` gives shapes. A script or module is run once, so that
    races are not looked for in it.

    The exit code is 1 where something was found.
    """
    from pallas_debug.verified import github
    from pallas_debug.verified.sarif import sarif

    verdict = _verdict(what, rest, options)
    if options["sarif"] is not None:
        _write(options["sarif"], output.json_text(sarif(verdict)))
    if options["github"]:
        for line in github.lines(verdict):
            click.echo(line)
    if options["as_json"]:
        output.print_json(verdict)
    else:
        click.echo(output.visible(str(verdict)))
    return Exit.OK if verdict.ok else Exit.FAILED


def _verdict(what: str, rest: tuple[str, ...], options: dict[str, Any]) -> Verdict:
    from pallas_debug.verified import verify, verify_program
    from pallas_debug.verified.suppressions import FILE

    suppress = options["suppress"] or (Path(FILE) if Path(FILE).is_file() else None)
    wanted = {
        "targets": ",".join(options["targets"]),
        "suppress": suppress,
        "to": options["to"],
        "timeout": options["timeout"],
        "jobs": options["jobs"],
    }
    if options["engines"]:
        wanted["engines"] = ",".join(options["engines"])
    named = None if options["module"] else programs.named_function(what)
    if named is None:
        if options["args"] or options["spec"]:
            raise UsageError(
                f"{'--arg' if options['args'] else '--spec'} is for package.module:function, "
                f"and {what!r} is a script or module"
            )
        programs.check_exists(what, module=options["module"])

        def run() -> BaseException | None:
            return programs.execute(what, rest, module=options["module"])

        return verify_program(run, what, **wanted)
    if rest:
        raise UsageError(f"{what} is a function, and takes no arguments behind it: {rest[0]!r}")
    function = programs.import_function(*named)
    args, kwargs = programs.function_arguments(
        function, options["args"], options["spec"], values=True
    )
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        raise UsageError(
            f"{what} cannot be called so: {error}. Give what it takes, each with its own --arg, "
            "such as --arg 'f32[128,128]' or --arg causal=True"
        ) from error
    return verify(function, *args, **wanted, **kwargs)


def _write(path: Path, text: bytes) -> None:
    try:
        path.write_bytes(text)
    except OSError as error:
        raise CannotRunError(f"{path} cannot be written: {error.strerror}") from error
