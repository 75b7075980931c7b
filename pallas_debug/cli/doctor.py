"""`pallas-debug doctor`: what works on this machine, and what there is to try."""

from __future__ import annotations

from dataclasses import dataclass

import click

from pallas_debug.cli import options as shared
from pallas_debug.cli import output
from pallas_debug.cli.exits import Exit
from pallas_debug.errors import UsageError
from pallas_debug.installed import require_jax


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    targets: bool
    kernels: bool
    as_json: bool


@click.option("--targets", is_flag=True, help="List the chips that kernels can be compiled for.")
@click.option(
    "--kernels",
    is_flag=True,
    help="List the bundled kernels and their specs, which are named sets of arguments.",
)
@shared.as_json
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
    return _examine(options.as_json)


command = shared.make("doctor", DoctorOptions, run)


def _examine(as_json: bool) -> Exit:
    from pallas_debug._api.doctor import examine

    checks = []
    for check in examine():
        checks.append(check)
        if not as_json:
            mark = {"ok": "ok     ", "warning": "warning", "failed": "failed "}[check.state]
            click.echo(f"{mark}  {check.name}: {output.visible(check.detail)}")
            if check.remedy:
                click.echo(f"         → {check.remedy}")
    if as_json:
        output.print_json("doctor", {"checks": checks})
    return Exit.CANNOT_RUN if any(c.state == "failed" for c in checks) else Exit.OK


def _list_targets(as_json: bool) -> Exit:
    from pallas_debug.compiler import targets
    from pallas_debug.hooks import extra_targets, plugin_manager

    known = targets.known(extra_targets(plugin_manager()))
    if as_json:
        output.print_json("doctor-targets", {"targets": known})
    else:
        output.print_table(
            ["target", "topology", "device kind", ""],
            [[t.name, t.topology or "", t.device_kind or "", t.summary] for t in known],
        )
    return Exit.OK


def _list_kernels() -> Exit:
    """List the bundled kernels with the names of their specs by tag, the broken ones last."""
    from pallas_debug_kernels import operations
    from pallas_debug_kernels.broken import BROKEN

    rows = []
    for op in operations():
        tags = dict.fromkeys(tag for spec in op.specs for tag in spec.tags)
        named = [f"{tag}: {', '.join(spec.name for spec in op.tagged(tag))}" for tag in tags]
        rows.append([op.name, op.summary, "; ".join(named)])
    rows += [[kernel.name, kernel.summary, f"fault: {kernel.fault}"] for kernel in BROKEN]
    output.print_table(["kernel", "", "specs"], rows)
    return Exit.OK
