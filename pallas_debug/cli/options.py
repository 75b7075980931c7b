"""Options of commands: dataclasses whose fields are also the options of the command line.

Each command file has such a class and a `run(options)` that returns an exit code. `make` connects
the two to click, so only this module deals with click's parsed values. `--help` shows at most ten
options of a command; the others are `hidden`, and in `--help-all`.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import click

from pallas_debug import defaults
from pallas_debug.installed import require_jax

Options = TypeVar("Options")


def option(*names: str, **settings: Any) -> Any:
    """A field that an option fills: a flag for a `bool`, repeatable for a `tuple`."""
    return field(metadata={"names": names, "settings": settings})


def argument(**settings: Any) -> Any:
    """A field that an argument fills."""
    return field(metadata={"settings": settings})


def make(
    name: str,
    kind: type[Options],
    run: Callable[[Options], int],
    *,
    needs_jax: bool = False,
    cls: type[click.Command] = click.Command,
) -> click.Command:
    """Return a click command that fills `kind`, a dataclass of options, and passes it to `run`.

    Args:
      run: its docstring is the help text.
      needs_jax: whether to refuse to run, with exit code 3, if jax is not installed.
    """

    def callback(**given: Any) -> int:
        if "module" in given and "::" in given["what"]:  # a test: FILE::test, as for pytest
            given |= {"what": "pytest", "module": True, "rest": (given["what"], *given["rest"])}
        options = kind(**given)
        if needs_jax:
            require_jax(f"`{name}`")
        return run(options)

    parameters: list[click.Parameter] = []
    for of in fields(kind):  # type: ignore[arg-type]
        settings = dict(of.metadata["settings"])
        if "names" in of.metadata:
            settings |= {"is_flag": True} if of.type == "bool" else {}
            settings |= {"multiple": True} if str(of.type).startswith("tuple") else {}
            parameters.append(click.Option([*of.metadata["names"], of.name], **settings))
        else:
            parameters.append(click.Argument([of.name], **settings))
    rare = sum(isinstance(one, click.Option) and one.hidden for one in parameters)
    if rare:
        text = f"Show {rare} more options, and exit."
        how: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False}
        parameters.append(click.Option(["--help-all"], help=text, callback=_all, **how))
    return cls(name, params=parameters, callback=callback, help=run.__doc__)


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


class _Place(click.Path):
    """A dump directory: a local path, or a URL such as `s3://bucket/dumps`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not os.fsdecode(value):  # of an unset shell variable; Path("") is the current directory
            self.fail("the path is empty.", param, ctx)
        from pallas_debug.store.layout import is_url

        return value if is_url(value) else super().convert(value, param, ctx)


FILE = click.Path(path_type=Path, dir_okay=False)
PLACE = _Place(path_type=Path)


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


def _named(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """Reject an option that names nothing, such as one whose value is an unset shell variable."""
    if given and not any(name.strip() for text in given for name in text.split(",")):
        raise click.BadParameter("is empty; omit it to use the default.", ctx, param)
    return given


def as_json() -> Any:
    return option("--json", help="Print JSON to standard output.")


def compared(reference: str | None) -> list[str]:
    """The words of a command line that name a reference."""
    return [] if reference is None else ["--reference", reference]


def timeout() -> Any:
    return option(
        "--timeout",
        type=SECONDS,
        default=defaults.COMPILE_TIMEOUT,
        show_default=True,
        help="Maximum seconds for one compilation. Waiting for another process that compiles the "
        "same kernel may take 5 more.",
        hidden=True,
    )


@dataclass(frozen=True, kw_only=True)
class StoredOptions:
    """Options for a kernel in a dump directory: a place, or a kernel's name in `dumps`."""

    where: str | Path = argument(type=PLACE, default=defaults.DIRECTORY)
    kernel: str | None = option("-k", "--kernel", help="The kernel, if there are several.")
    target: str | None = option("-t", "--target", help="The target, if there are several.")


@dataclass(frozen=True, kw_only=True)
class FunctionOptions:
    """Options for a function and its arguments."""

    what: str = argument()
    args: tuple[str, ...] = option(
        "-a",
        "--arg",
        help="For a function, once per argument: f32[8,128], lengths=i32[2]=[512,100], "
        "f32[8,128]=ones, i32[8]=randint(0,100), table=@table.npy, 128, causal=True. Also arange, "
        "zeros, normal, uniform, permutation, key(0), and tuples, lists and dicts of "
        "them.",
    )
    inputs: str | None = option(
        "--inputs",
        metavar="MODULE:FUNCTION",
        help="For a function: call this function, without arguments, for its arguments; it returns "
        "(args, kwargs), or one of them.",
        hidden=True,
    )
    spec: str | None = option(
        "--spec",
        help="For a bundled kernel: name of its spec; the first by default. See `doctor "
        "--kernels`.",
        hidden=True,
    )

    def words(self) -> list[str]:
        """Return the words of a command line that name the same function and arguments."""
        words = [self.what, *(word for arg in self.args for word in ("--arg", arg))]
        for option, value in (("--inputs", self.inputs), ("--spec", self.spec)):
            words += [] if value is None else [option, value]
        return words


@dataclass(frozen=True, kw_only=True)
class CallOptions(FunctionOptions):
    """Options for a program to run: a script, a module, or a function with its arguments."""

    rest: tuple[str, ...] = argument(nargs=-1, type=click.UNPROCESSED)
    module: bool = option(
        "-m", "--module", help="WHAT is a module, as for `python -m`.", hidden=True
    )

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
class CompileOptions:
    """Options for compilations: for which chips, and how."""

    targets: tuple[str, ...] = option(
        "-t",
        "--target",
        callback=_named,
        default=[defaults.TARGET],
        show_default=True,
        help="Chips, joined by commas or repeated; `all` for every generation. "
        "See `doctor --targets`.",
    )
    timeout: float = timeout()
    jobs: int = option(
        "-j",
        "--jobs",
        type=click.IntRange(min=0),
        default=0,
        help="Compiler processes; 0: one per core, up to four.",
        hidden=True,
    )


@dataclass(frozen=True, kw_only=True)
class KeepOptions(CompileOptions):
    """Options for compilations that are kept: where, and what of each."""

    directory: str | Path = option(
        "-o",
        "--to",
        type=PLACE,
        default=Path(defaults.DIRECTORY),
        show_default=True,
        help="The dump directory; created if it does not exist.",
    )
    switches: tuple[str, ...] = option(
        "--switch",
        metavar="NAME",
        help="Switches for each compilation, joined by commas or repeated: "
        "log_recorder, bounds_checks, assertions, …",
        hidden=True,
    )
    stages: tuple[str, ...] = option(
        "--stages",
        metavar="NAMES",
        help="More of each compilation to keep, joined by commas or repeated: estimate (libtpu's "
        "cycle estimate, for which it simulates the whole grid), llo (all LLO passes: tens of MB), "
        "llo:PASS (single ones, as in llo:post-ra or llo:*bundles*); mosaic leaves out the VLIW "
        "schedule.",
    )


@dataclass(frozen=True, kw_only=True)
class ProgramOptions(CallOptions, CompileOptions):
    """Options common to `dump` and `verify`: what to compile, for which chips, and how."""

    pretend: bool = option(
        "--pretend",
        help="Answer queries of jax's devices as the target would (`jax.default_backend()`, "
        "`device_kind`), for code that runs its kernels only on a TPU.",
        hidden=True,
    )
