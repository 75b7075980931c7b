"""`pallas-debug demo`: a first run with a bundled kernel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from pallas_debug import defaults
from pallas_debug.cli import options as shared
from pallas_debug.cli.dump import command as dump


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    directory: Path


@click.option(
    "-o",
    "--to",
    "directory",
    type=click.Path(path_type=Path),
    default=defaults.DIRECTORY,
    show_default=True,
    help="The dump directory.",
)
def run(options: DemoOptions) -> int:
    """Dump the bundled flash attention for v5e and v6e, and suggest what to look at.

    Equivalent to `pallas-debug dump pallas_debug_kernels:flash_attention` with its arguments.
    """
    directory = options.directory
    arguments = [
        f"--to={directory}",
        "--target=v5e,v6e",
        *(f"--arg={a}" for a in (*["bf16[1,2,512,128]"] * 3, "causal=True")),
        "pallas_debug_kernels:flash_attention",
    ]
    click.echo("$ pallas-debug dump " + " ".join(_quoted(a) for a in arguments))
    code: int = dump.main(arguments, standalone_mode=False)
    from pallas_debug.cli.ls import command as ls

    click.echo(f"$ pallas-debug ls {directory}")
    ls.main([str(directory)], standalone_mode=False)
    click.echo(f"\nnext: pallas-debug show {directory} mosaic -k flash_attention -t v5e")
    return code


command = shared.make("demo", DemoOptions, run, needs_jax=True)


def _quoted(text: str) -> str:
    import shlex

    return shlex.quote(text)
