"""`pallas-debug sweep`: compile a grid of settings of a function, and rank them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pallas_debug import followup
from pallas_debug.cli import options as shared
from pallas_debug.cli import output, programs
from pallas_debug.cli.exits import Exit
from pallas_debug.errors import UsageError

if TYPE_CHECKING:
    from pallas_debug.sweeps.result import SweepResult

_OVER = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<values>.+)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class SweepOptions(shared.FunctionOptions, shared.KeepOptions):
    over: tuple[str, ...] = shared.option(
        "--over",
        metavar="NAME=VALUES",
        help="A keyword argument and its values, as in block_q=128,256,512; once per argument. "
        "Values are written as for --arg.",
    )
    predict: int | None = shared.option(
        "--predict",
        type=click.IntRange(min=1),
        metavar="N",
        help="Compile only N settings for each target: those that a simulation from the first one "
        "ranks best.",
    )
    as_json: bool = shared.as_json()


def run(options: SweepOptions) -> int:
    """Compile the kernels of a function for every combination of settings, and rank them.

    \b
    pallas-debug sweep package.module:function --over block_q=128,256 --over block_k=128,256 \\
        --arg 'bf16[1,8,2048,128]' --arg 'bf16[1,8,2048,128]' --arg 'bf16[1,8,2048,128]'
    pallas-debug sweep pallas_debug_kernels:flash_attention --over block_k=64,128,256

    The table is sorted by estimated cycles, best first; settings that do not compile come last,
    with the reason. Nothing is run.

    Kernels are stored in the dump directory: if you run the same sweep again, it compiles only what
    is missing or has changed. The directory may be in an object store.

    The exit code is 1 if no setting compiled for a target, and 3 if a setting has no result because
    of a problem with the machine.
    """
    named = programs.named_function(options.what)
    if named is None:
        raise UsageError(
            "a sweep takes a function, as package.module:function or file.py:function, not "
            f"{options.what!r}: it varies the function's arguments"
        )
    function = programs.imported(*named)
    over = _over(options.over)
    positional, keyword = programs.function_arguments(function, options)
    first = {name: values[0] for name, values in over.items()}
    programs.check_call(options.what, function, positional, keyword | first)
    found = _swept(function, over, positional, keyword, options)
    if options.as_json:
        document = {name: value for name, value in vars(found).items() if name != "is_stopped"}
        output.print_json("sweep", {"ok": found.ok, **document})
    else:
        _print(found, options)
    return _exit_code(found)


command = shared.make("sweep", SweepOptions, run, needs_jax=True)


def _over(given: Sequence[str]) -> dict[str, list[Any]]:
    """Parse the `--over` options."""
    from pallas_debug import inputs

    found: dict[str, list[Any]] = {}
    for text in given:
        match = _OVER.fullmatch(text)
        if match is None:
            raise UsageError(f"--over {text!r} is not of the form NAME=VALUE,VALUE,…")
        name = match["name"]
        if name in found:
            raise UsageError(f"--over {name} was given twice; write all its values in one list")
        try:
            _, values = inputs.parse((f"{name}=[{match['values']}]",), values=False)
        except UsageError as error:
            raise UsageError(f"--over {text!r}: {error}") from error
        found[name] = list(values[name])
    return found


def _swept(
    function: Callable[..., Any],
    over: dict[str, list[Any]],
    positional: list[Any],
    keyword: dict[str, Any],
    options: SweepOptions,
) -> SweepResult:
    from pallas_debug.sweeps.run import sweep

    doing = "starting"

    def progress(finished: int, of: int) -> None:
        nonlocal doing
        doing = f"{finished} of {of} settings"

    with output.status(lambda: doing):
        return sweep(
            function,
            over=over,
            args=positional,
            kwargs=keyword,
            targets=",".join(options.targets),
            to=options.directory,
            jobs=options.jobs,
            timeout=options.timeout,
            switches=options.switches,
            stages=options.stages,
            predict=options.predict,
            progress=progress,
        )


def _print(found: SweepResult, options: SweepOptions) -> None:
    from pallas_debug.sweeps.result import notes, predicted, reasons_of, table

    if found.predictions:
        output.print_table(*predicted(found.predictions, found.results))
        click.echo()
    # A row of its own text for `cut` and `awk`; in a terminal it would fill the screen.
    reasons = reasons_of(found.results) if sys.stdout.isatty() else []
    output.print_table(*table(found.results, reasons))
    for line in notes(reasons):
        output.echo_wrapped(line, len("(1) "))
    for problem in found.problems:
        output.message(problem)
    for target in found.targets:
        output.message(_best(found, target))
    rest = len(found.unfinished) + len({result.label for result in found.undecided})
    if rest:
        of = len(found.unfinished) + len({result.label for result in found.results})
        stopped = "stopped: " if found.is_stopped else ""
        output.message(
            f"{stopped}{rest} of {of} settings have no result, or failed for reasons that may have "
            "nothing to do with them; run the same command again to try them"
        )
    output.follow(_next(found, options.directory))


def _next(found: SweepResult, root: str | Path) -> str | None:
    """Command that compares the best and the worst setting, or shows what the only one costs."""
    for target in found.targets:
        compiled = [r for r in found.compiled(target) if r.cycles.value is not None and r.kernels]
        if not compiled:
            continue
        worst, best = (followup.within(root, r.kernels[0]) for r in (compiled[-1], compiled[0]))
        words = ["stats", best] if worst == best else ["diff", "--stats", worst, best]
        return followup.command(*words, "-t", target)
    return None


def _best(found: SweepResult, target: str) -> str:
    compiled, best = found.compiled(target), found.best(target)
    if not compiled:
        return f"no setting compiled for {target}"
    why = "depend on numbers that are known only at run time"
    if best is None:
        return (
            f"no best for {target}: the cycles of all settings {why}, such as the size of a "
            "dynamic grid; pass arguments with values: --arg 'i32[2]=[512,100]', or --inputs "
            "package.module:function"
        )
    unknown = sum(r.cycles.value is None for r in compiled)
    others = f"; without {unknown} whose cycles {why}" if unknown else ""
    return f"best for {target}: {best.label}: {best.cycles} cycles{others}"


def _exit_code(found: SweepResult) -> Exit:
    if found.is_stopped:
        return Exit.INTERRUPTED
    if not all(found.compiled(target) for target in found.targets):
        return Exit.CANNOT_RUN if found.unfinished or found.undecided else Exit.FAILED
    return Exit.OK if found.ok else Exit.CANNOT_RUN
