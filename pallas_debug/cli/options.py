"""Typed options for commands, and the click options that several commands share.

Each command file has a frozen dataclass of its options and a `run(options)` that returns an exit
code. `make` connects the two to click, so only this module deals with click's parsed values.
`--help` shows at most ten options of a command; the others are `hidden`, and in `--help-all`.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from pallas_debug import defaults
from pallas_debug.installed import require_jax

Decorator = Callable[[Any], Any]
Options = TypeVar("Options")


def make(
    name: str,
    kind: Callable[..., Options],
    run: Callable[[Options], int],
    *,
    needs_jax: bool = False,
    **settings: Any,
) -> click.Command:
    """Return a click command that fills `kind`, a dataclass of options, and passes it to `run`.

    Args:
      run: the function with click's parameters, named like the fields; its docstring is the help
        text.
      needs_jax: whether to refuse to run, with exit code 3, if jax is not installed.
    """

    def callback(**given: Any) -> int:
        if "module" in given and "::" in given["what"]:  # a test: FILE::test, as for pytest
            given |= {"what": "pytest", "module": True, "rest": (given["what"], *given["rest"])}
        options = kind(**given)
        if needs_jax:
            require_jax(f"`{name}`")
        return run(options)

    callback.__doc__ = run.__doc__
    callback.__click_params__ = run.__click_params__  # type: ignore[attr-defined]
    made: Callable[[Callable[..., int]], click.Command] = click.command(name, **settings)
    command = made(callback)
    rare = [p for p in command.params if isinstance(p, click.Option) and p.hidden]
    if rare:
        text = f"Show {len(rare)} more options, and exit."
        command = click.option(
            "--help-all", is_flag=True, is_eager=True, expose_value=False, help=text, callback=_all
        )(command)
    return command


def _all(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    """Print the help with all options, those that are hidden from `--help` included."""
    if not value:
        return
    command = copy.copy(context.command)
    command.params = [copy.copy(p) for p in command.params if p is not parameter]
    for option in command.params:
        if isinstance(option, click.Option):
            option.hidden = False
    click.echo(command.get_help(context))
    context.exit()


@dataclass(frozen=True, kw_only=True)
class FunctionOptions:
    """Options for a function and its arguments."""

    what: str
    args: tuple[str, ...]
    inputs: str | None
    spec: str | None

    def words(self) -> list[str]:
        """Return the words of a command line that name the same function and arguments."""
        words = [self.what, *(word for arg in self.args for word in ("--arg", arg))]
        for option, value in (("--inputs", self.inputs), ("--spec", self.spec)):
            words += [] if value is None else [option, value]
        return words


@dataclass(frozen=True, kw_only=True)
class CallOptions(FunctionOptions):
    """Options for a program to run: a script, a module, or a function with its arguments."""

    rest: tuple[str, ...]
    module: bool

    @property
    def test(self) -> str | None:
        """The test of pytest that is run, as FILE::test; None for any other program."""
        is_test = self.module and self.what == "pytest" and "::" in "".join(self.rest[:1])
        return self.rest[0] if is_test else None

    def words(self) -> list[str]:
        if self.test is not None:
            return [*self.rest]
        words = ["-m"] if self.module else []
        words += ["--"] if any(word.startswith("-") for word in self.rest) else []
        return [*words, *super().words(), *self.rest]


@dataclass(frozen=True, kw_only=True)
class ProgramOptions(CallOptions):
    """Options common to `dump` and `verify`: what to compile, for which chips, and how."""

    targets: tuple[str, ...]
    pretend: bool
    timeout: float
    jobs: int
    as_json: bool


class _Place(click.Path):
    """A dump directory: a local path, or a URL such as `s3://bucket/dumps`.

    To read one at a URL, the path is that of a local copy; to write one, the URL itself.
    """

    def __init__(self, *, is_written: bool = False) -> None:
        super().__init__(path_type=Path)
        self._is_written = is_written

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not os.fsdecode(value):  # of an unset shell variable; Path("") is the current directory
            self.fail("the path is empty.", param, ctx)
        from pallas_debug.store.layout import is_url

        if not is_url(value):
            return super().convert(value, param, ctx)
        if self._is_written:
            return value
        from pallas_debug.store.remote import fetch

        return fetch(value)


PLACE = _Place()


def where(function: Any) -> Any:
    """Argument WHERE of commands that read: `dumps` by default, or a kernel's name in it."""
    return click.argument("where", type=PLACE, default=defaults.DIRECTORY)(function)


class _Seconds(click.FloatRange):
    """A number of seconds above 0; more than a timer can wait, or `inf`, is its longest wait."""

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):  # which no comparison excludes
            self.fail(f"{value} is not a number.", param, ctx)
        return min(number, defaults.MAX_SECONDS)


SECONDS = _Seconds()

pretend = click.option(
    "--pretend",
    is_flag=True,
    help="Answer queries of jax's devices as the target would (`jax.default_backend()`, "
    "`device_kind`), for code that runs its kernels only on a TPU.",
    hidden=True,
)

module = click.option(
    "-m", "--module", is_flag=True, help="WHAT is a module, as for `python -m`.", hidden=True
)

args = click.option(
    "-a",
    "--arg",
    "args",
    multiple=True,
    help="For a function, once per argument: f32[8,128], lengths=i32[2]=[512,100], "
    "f32[8,128]=ones, i32[8]=randint(0,100), table=@table.npy, 128, causal=True. Also arange, "
    "zeros, full(x), normal, uniform, permutation, key(0), and tuples, lists and dicts of them.",
)

inputs = click.option(
    "--inputs",
    metavar="MODULE:FUNCTION",
    help="For a function: call this function, without arguments, for its arguments; it returns "
    "(args, kwargs), or one of them.",
    hidden=True,
)

spec = click.option(
    "--spec",
    help="For a bundled kernel: name of its spec; the first by default. See `doctor --kernels`.",
    hidden=True,
)

switches = click.option(
    "--switch",
    "switches",
    multiple=True,
    metavar="NAME",
    help="Switches for each compilation, joined by commas or repeated: "
    "log_recorder, bounds_checks, assertions, …",
    hidden=True,
)

stages = click.option(
    "--stages",
    multiple=True,
    metavar="NAMES",
    help="More of each compilation to keep, joined by commas or repeated: estimate (libtpu's cycle "
    "estimate, for which it simulates the whole grid), llo (all LLO passes: tens of MB), llo:PASS "
    "(single ones, as in llo:post-ra or llo:*bundles*); mosaic leaves out the VLIW schedule.",
)

timeout = click.option(
    "--timeout",
    type=SECONDS,
    default=defaults.COMPILE_TIMEOUT,
    show_default=True,
    help="Maximum seconds for one compilation. Waiting for another process that compiles the "
    "same kernel may take 5 more.",
    hidden=True,
)

jobs = click.option(
    "-j",
    "--jobs",
    type=click.IntRange(min=0),
    default=0,
    help="Compiler processes; 0: one per core, up to four.",
    hidden=True,
)

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON to standard output.")

kernel = click.option("-k", "--kernel", help="The kernel, if there are several.")

target = click.option("-t", "--target", help="The target, if there are several.")


def directory(
    name: str, help_: str, default: Path | None = None, *, is_rare: bool = False
) -> Decorator:
    """Option for the directory in which compilations are kept."""
    return click.option(
        "-o",
        "--to",
        name,
        type=_Place(is_written=True),
        default=default,
        show_default=default is not None,
        help=help_,
        hidden=is_rare,
    )


def _named(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """Reject an option that names nothing, such as one whose value is an unset shell variable."""
    if given and not any(name.strip() for text in given for name in text.split(",")):
        raise click.BadParameter("is empty; omit it to use the default.", ctx, param)
    return given


def targets(default: str = defaults.TARGET) -> Decorator:
    """Option for the chips to compile for; every command has the same default."""
    return click.option(
        "-t",
        "--target",
        "targets",
        multiple=True,
        callback=_named,
        default=[default],
        show_default=True,
        help="Chips, joined by commas or repeated; `all` for every generation. "
        "See `doctor --targets`.",
    )


def what(function: Any) -> Any:
    """Arguments WHAT and REST: a script, module or test with its arguments, or a function."""
    rest = click.argument("rest", nargs=-1, type=click.UNPROCESSED)
    return click.argument("what")(rest(function))
