"""`pallas-debug verify`: one verdict on the kernels of a function, script or module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pallas_debug import defaults, followup
from pallas_debug.cli import options as shared
from pallas_debug.cli import output, programs
from pallas_debug.cli.exits import Exit
from pallas_debug.errors import InvalidReference, PallasDebugError, ProgramFailed, UsageError

if TYPE_CHECKING:
    from pallas_debug.verdict import Verdict, Verifier


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(shared.ProgramOptions):
    engines: tuple[str, ...] = shared.option(
        "-e",
        "--engine",
        metavar="NAME",
        help="Run only these: static, compile, machine; joined by commas or repeated. If one "
        "cannot judge a kernel, the exit code is 3.",
        hidden=True,
    )
    reference: str | None = shared.option(
        "--reference",
        metavar="MODULE:FUNCTION",
        help="Compare the results with those of this function, which takes the same arguments.",
    )
    rtol: float | None = shared.option(
        "--rtol",
        type=float,
        metavar="NUMBER",
        help="Error that an element may have, relative to the reference's; by default by dtype.",
        hidden=True,
    )
    atol: float | None = shared.option(
        "--atol",
        type=float,
        metavar="NUMBER",
        help="Error that any element may have in addition; by default rtol times the largest "
        "element.",
        hidden=True,
    )
    grad: bool = shared.option(
        "--grad",
        help="Verify the gradient of the function: its backward kernels, against the gradient of "
        "the reference, or against finite differences of the function itself.",
        hidden=True,
    )
    verbose: bool = shared.option(
        "-v",
        "--verbose",
        help="Show the details of findings: writers of a wrong value, consequences, engines.",
    )
    suppress: Path | None = shared.option(
        "--suppress",
        type=shared.FILE,
        help="File of findings to ignore, with reasons; ./pallas-debug.toml by default, if it "
        "exists.",
        hidden=True,
    )
    to: str | Path = shared.option(
        "-o",
        "--to",
        type=shared.PLACE,
        default=Path(defaults.DIRECTORY),
        help="Keep the compilations and findings in this directory, for `report` and `browse`.",
        hidden=True,
    )
    budget: float | None = shared.option(
        "--budget",
        type=shared.SECONDS,
        metavar="SECONDS",
        help="Time for the reference and the kernel machine. When it has passed, the grid points "
        "that ran are judged, the table marks that with a star, and the exit code is 3 if nothing "
        "is found.",
    )
    search: bool = shared.option(
        "--search",
        help="Search for the smallest input that fails, on the kernel machine; --arg then also "
        "takes sizes such as f32[n*8,128], and values such as 'i32[4] in 0..512'.",
    )
    lets: tuple[str, ...] = shared.option(
        "--let",
        metavar="NAME=VALUES",
        help="For --search, a variable of --arg: n=1..8, or block=64,128. Repeatable.",
        hidden=True,
    )
    seed: int | None = shared.option(
        "--seed",
        type=int,
        metavar="NUMBER",
        help="For --search, the seed of the inputs; by default a new one.",
        hidden=True,
    )
    as_json: bool = shared.as_json()
    sarif: Path | None = shared.option(
        "--sarif",
        type=shared.FILE,
        help="Write the findings to this file for code scanning, as SARIF 2.1.0.",
        hidden=True,
    )


def run(options: VerifyOptions) -> int:
    """Report whether the kernels of WHAT work, on which chips, and if not, why.

    \b
    pallas-debug verify package.module:function --arg 'bf16[1,2,512,128]' --arg causal=True
    pallas-debug verify pallas_debug_kernels:flash_attention
    pallas-debug verify SCRIPT.py [ARGS]…
    pallas-debug verify -m package.module [ARGS]…

    Runs the static analysis, jax's lowering and libtpu for each target, and the sanitizer, and
    reports each fault once, however many of them found it. A function is traced and run, with
    made-up values if `--arg` gives only shapes; `--reference` names a function that returns the
    correct results. A script or module is run once, with its kernels on the kernel machine.

    The exit code is 1 if something was found, 3 if nothing was found but not everything could be
    judged, and 0 only if everything was judged. Findings that rest on made-up values do not count.
    """
    from pallas_debug.verdict import Verifier

    if options.search:
        from pallas_debug.cli import search

        return search.run(options)
    for name, given in (("--let", options.lets), ("--seed", options.seed)):
        if given not in ((), None):
            raise UsageError(f"{name} applies to --search: pass that as well")
    verifier = Verifier(options.what)

    try:
        with programs.pretending(options), output.status(lambda: verifier.progress):
            verdict = _verdict(options, verifier)
    except KeyboardInterrupt:
        _show(verifier.stopped("stopped by ctrl+c", options.reference), options)
        raise
    code = _show(verdict, options)
    output.follow(next_command(verdict, options), as_json=options.as_json)
    return code


def next_command(verdict: Verdict, options: VerifyOptions) -> str:
    """Return the command that shows most about a verdict."""
    if options.grad and verdict.findings:  # no command steps through a gradient
        return followup.command("browse", options.to)
    verified: list[str] = ["--grad"] if options.grad else []
    if any(outcome.points is not None for outcome in verdict.outcomes) and options.budget:
        verified += ["--budget", f"{4 * options.budget:g}"]
    elif verdict.ok and not options.engines and options.targets == (defaults.TARGET,):
        is_for_gpu = any(o.engine == "static" and o.status == "skipped" for o in verdict.outcomes)
        verified += ["-t", "h100" if is_for_gpu else "all"]
    else:
        verified = []
    return followup.after_verdict(
        verdict.findings,
        [*shared.compared(options.reference), *options.words()],
        options.to,
        verified=verified,
        is_complete=verdict.complete,
    )


def _show(verdict: Verdict, options: VerifyOptions) -> Exit:
    _print(verdict, options)
    if options.sarif is not None:
        from pallas_debug.verdict.formats.sarif import sarif

        output.write_file(options.sarif, output.json_text(sarif(verdict)))
    return exit_code(verdict)


command = shared.make("verify", VerifyOptions, run, needs_jax=True)


def exit_code(verdict: Verdict) -> Exit:
    """Return the exit code of a verdict; findings take precedence over what was not judged."""
    if verdict.counted:
        return Exit.FAILED
    return Exit.OK if verdict.ok else Exit.CANNOT_RUN


def _print(verdict: Verdict, options: VerifyOptions) -> None:
    from pallas_debug.verdict.formats.text import verdict_text

    if options.as_json:
        output.print_json("verify", {"ok": verdict.ok, **vars(verdict)})
        return
    text = output.visible(verdict_text(verdict, verbose=options.verbose))
    click.echo(output.painted(text))


def _verdict(options: VerifyOptions, verifier: Verifier) -> Verdict:
    from pallas_debug.verdict import Request
    from pallas_debug.verdict.suppressions import FILE

    suppress = options.suppress or (Path(FILE) if Path(FILE).is_file() else None)
    what, rest = options.what, options.rest
    wanted: dict[str, Any] = {
        "targets": ",".join(options.targets),
        "suppress": suppress,
        "to": options.to,
        "timeout": options.timeout,
        "jobs": options.jobs,
        "grad": options.grad,
        "budget": options.budget,
    }
    if options.engines:
        wanted["engines"] = ",".join(options.engines)
    named = programs.function_of(options)
    if named is None:
        compared = ("reference", options.reference), ("rtol", options.rtol), ("atol", options.atol)
        for option, given in (*compared, ("grad", options.grad or None)):
            if given is not None:
                raise programs.not_a_function(f"--{option}", what)

        def execute() -> BaseException | None:
            return programs.execute(what, rest, module=options.module)

        return verifier.of_program(execute, Request(**wanted))
    try:
        function = programs.import_function(*named)
    except PallasDebugError:
        raise
    except Exception as error:  # noqa: BLE001 - of the user's module, as it is imported
        stopped = error
        return verifier.of_program(lambda: stopped, Request(**wanted))
    args, kwargs = programs.function_arguments(function, options, values=True)
    programs.check_call(what, function, args, kwargs)
    wanted |= {"rtol": options.rtol, "atol": options.atol}
    if options.reference is not None:
        wanted["reference"] = reference(options.reference)
        programs.check_call(options.reference, wanted["reference"], args, kwargs)
    try:
        return verifier.of_function(function, args, kwargs, Request(**wanted))
    except InvalidReference as error:
        if error.__cause__ is not None:
            programs.print_their_traceback(error.__cause__)
        raise


def reference(what: str) -> Callable[..., Any]:
    """Import the function that `--reference` names."""
    try:
        return programs.function_named("--reference", what)
    except ProgramFailed as error:
        raise InvalidReference(f"--reference {what}: {error}") from error
