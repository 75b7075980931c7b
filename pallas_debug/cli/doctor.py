"""`pallas-debug doctor`: report on what works on this machine, with remedies."""

from __future__ import annotations

from dataclasses import dataclass

import click

from pallas_debug.cli import options as shared
from pallas_debug.cli import output
from pallas_debug.cli.exits import Exit


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    as_json: bool


@shared.as_json
def run(options: DoctorOptions) -> int:
    """Check what works on this machine, and suggest a remedy for each problem.

    Compiles a kernel for every target. The exit code is 3 if kernels cannot be dumped.
    """
    from pallas_debug._api.doctor import examine

    checks = []
    for check in examine():
        checks.append(check)
        if not options.as_json:
            mark = {"ok": "ok     ", "warning": "warning", "failed": "failed "}[check.state]
            click.echo(f"{mark}  {check.name}: {output.visible(check.detail)}")
            if check.remedy:
                click.echo(f"         → {check.remedy}")
    if options.as_json:
        output.print_json("doctor", {"checks": checks})
    return Exit.CANNOT_RUN if any(c.state == "failed" for c in checks) else Exit.OK


command = shared.make("doctor", DoctorOptions, run)
