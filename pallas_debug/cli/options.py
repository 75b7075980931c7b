"""What `dump` and `verify` take alike: what to look at, for which chips, and how to compile it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from pallas_debug import defaults

Decorator = Callable[[Any], Any]

module = click.option("-m", "--module", is_flag=True, help="WHAT is a module, as for `python -m`.")

args = click.option(
    "-a", "--arg", "args", multiple=True, help="For a function: bf16[1,2,512,128], 128, causal=True"
)

spec = click.option(
    "--spec",
    help="For a bundled kernel: its spec of this name; the first unless told. See `kernels`.",
)

timeout = click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=defaults.COMPILE_TIMEOUT,
    show_default=True,
    help="Seconds that one compilation may take. Waiting for another process that compiles the "
    "same kernel may take 5 more.",
)

jobs = click.option(
    "-j", "--jobs", type=click.IntRange(min=0), default=0, help="Compiler processes; 0: per core."
)

as_json = click.option("--json", "as_json", is_flag=True, help="Report as JSON on standard output.")


def directory(name: str, help_: str, default: Path | None = None) -> Decorator:
    """Where compilations are kept."""
    return click.option(
        "-o",
        "--to",
        name,
        type=click.Path(path_type=Path),
        default=default,
        show_default=default is not None,
        help=help_,
    )


def targets(default: str) -> Decorator:
    """The chips."""
    return click.option(
        "-t",
        "--target",
        "targets",
        multiple=True,
        default=[default],
        show_default=True,
        help="Chips, joined by commas or repeated; `all` for every generation. See `targets`.",
    )


def what(function: Any) -> Any:
    """A script or module with arguments of its own, or a function."""
    rest = click.argument("rest", nargs=-1, type=click.UNPROCESSED)
    return click.argument("what")(rest(function))
