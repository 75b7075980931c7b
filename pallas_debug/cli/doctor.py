"""`pallas-debug doctor`: what works on this machine, and what to do about what does not."""

from __future__ import annotations

import click

from pallas_debug.cli import output
from pallas_debug.cli.exits import Exit


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(as_json: bool) -> int:
    """Say what works on this machine and what does not, each with its remedy.

    Really compiles a kernel for every target. Exits with 3 where kernels cannot be dumped.
    """
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
        output.print_json(checks)
    return Exit.CANNOT_RUN if any(c.state == "failed" for c in checks) else Exit.OK
