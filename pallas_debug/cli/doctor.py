"""`pallas-debug doctor`: what works on this machine, and what there is to try."""

from __future__ import annotations

from dataclasses import dataclass

import click

from pallas_debug import followup
from pallas_debug.cli import options as shared
from pallas_debug.cli import output
from pallas_debug.cli.exits import Exit
from pallas_debug.errors import UsageError
from pallas_debug.installed import require_jax


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    targets: bool = shared.option(
        "--targets", help="List the chips that kernels can be compiled for."
    )
    kernels: bool = shared.option(
        "--kernels",
        help="List the bundled kernels and their specs, which are named sets of arguments.",
    )
    verbose: bool = shared.option(
        "-v", "--verbose", help="Print every check, also those that are fine."
    )
    as_json: bool = shared.as_json()


def run(options: DoctorOptions) -> int:
    """Check what works on this machine, and suggest a remedy for each problem.

    Compiles a kernel for every target. The exit code is 3 if kernels cannot be dumped. With
    --targets or --kernels, it lists those instead.
    """
    if options.targets and options.kernels:
        raise UsageError("pass only one of --targets and --kernels")
    if options.as_json and options.kernels:
        raise UsageError("--kernels prints no JSON")
    if options.targets:
        return _list_targets(options.as_json)
    if options.kernels:
        require_jax("`doctor --kernels`")
        return _list_kernels()
    return _examine(options)


command = shared.make("doctor", DoctorOptions, run)


_BRIEF = ("pallas-debug", "jax", "libtpu", "device", "dumps")
"""Checks that are printed even if they are fine; of the others, a count."""


def _examine(options: DoctorOptions) -> Exit:
    from pallas_debug._api.doctor import Check, examine

    checks: list[Check] = []
    for check in examine():
        checks.append(check)
        is_shown = options.verbose or check.state != "ok" or check.name in _BRIEF
        if is_shown and not options.as_json:
            _print(check.state, f"{check.name}: {output.visible(check.detail)}")
            if check.remedy:
                click.echo(f"{'':9}{output.styled('remedy', f'→ {check.remedy}')}")
    code = Exit.CANNOT_RUN if any(c.state == "failed" for c in checks) else Exit.OK
    if options.as_json:
        output.print_json("doctor", {"checks": checks})
        return code
    fine = [c.name for c in checks if c.state == "ok" and c.name not in _BRIEF]
    targets = [name.removeprefix("target ") for name in fine if name.startswith("target ")]
    if not options.verbose and targets:
        _print("ok", f"targets: a kernel compiles for {', '.join(targets)}")
    if not options.verbose and len(fine) > len(targets):
        _print("ok", f"{len(fine) - len(targets)} more checks; -v prints them")
    output.follow(followup.after_doctor(is_fine=code == Exit.OK))
    return code


def _print(state: str, text: str) -> None:
    click.echo(output.painted(f"{state:7}  {text}"))


def _list_targets(as_json: bool) -> Exit:
    from pallas_debug.compiler import targets

    known = targets.known()
    if as_json:
        output.print_json("doctor-targets", {"targets": known})
    else:
        output.print_table(
            ["target", "topology", "device kind", ""],
            [[t.name, t.topology or "", t.device_kind or "", t.summary] for t in known],
        )
        output.follow(followup.command("dump", "-t", "all", followup.BUNDLED))
    return Exit.OK


def _list_kernels() -> Exit:
    """List the bundled kernels with the names of their specs by tag, the broken ones last."""
    from pallas_debug_kernels import gpu_operations, operations
    from pallas_debug_kernels.broken import BROKEN

    rows = []
    for op in (*operations(), *gpu_operations()):
        tags = dict.fromkeys(tag for spec in op.specs for tag in spec.tags)
        named = [f"{tag}: {', '.join(spec.name for spec in op.tagged(tag))}" for tag in tags]
        rows.append([op.name, op.summary, "; ".join(named)])
    rows += [[kernel.name, kernel.summary, f"fault: {kernel.fault}"] for kernel in BROKEN]
    output.print_table(["kernel", "", "specs"], rows)
    output.follow(followup.command("verify", followup.BUNDLED))
    return Exit.OK
