"""Options of the plugin, each on the command line, in the ini file and in the environment.

The command line takes precedence, then the environment, then the ini file. On the command line the
default is None, to distinguish a missing option from an explicit value.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

DUMPS = "dumps"
MODES = ("auto", "hlo", "tpu", "gpu", "machine", "off")
CHECKS = "user, nan, inf, index, div, float_div, hint, uninitialized"
DEFAULT_CHECKS = "user,nan,index,div,hint,uninitialized"
"""Values for help and bare flags; a test compares them with `pallas_debug`, which a run without
kernels does not import."""

MARKER = (
    "pallas(interpret=None, check=None, targets=None): "
    "override the run's options for the Pallas kernels of this test. "
    "interpret: a mode, as for --pallas-interpret. "
    "check: names, as for --pallas-check; True for the default checks, False for none. "
    "targets: chips for which its kernels are compiled when dumping, such as 'v5e,v6e'."
)
"""Description of the marker in `pytest --markers`."""


class Option(NamedTuple):
    """An option in its three forms. (A dataclass would cost every pytest run a millisecond.)

    A setting is an option that few runs need: it has no flag of its own, but pytest's `-o`.

    Attributes:
      name: `dump`, for `--pallas-dump`, the ini's `pallas_dump`, `PALLAS_DUMP`.
      metavar: placeholder for the value; empty for a switch, which takes no value.
      const: value of the flag without a value; None if a value is required.
      parse: function that returns the value of a text, and raises `ValueError` or `UsageError`.
    """

    name: str
    metavar: str
    help: str
    parse: Callable[[str], Any]
    const: str | None = None
    is_setting: bool = False

    @property
    def flag(self) -> str:
        """How it is given on the command line: `--pallas-dump`, `-o pallas_pretend`."""
        return f"-o {self.ini}" if self.is_setting else f"--pallas-{self.name}"

    @property
    def ini(self) -> str:
        return f"pallas_{self.name.replace('-', '_')}"

    @property
    def environment(self) -> str:
        return self.ini.upper()


# Parsers import what they need: they run only for options that are given.


def _directory(value: str) -> Path:
    if any(found for depth in ("*.py", "*/*.py") for found in Path(value).glob(depth)):
        raise ValueError(
            f"{value!r} is a directory with Python files; name another one to dump into, or put "
            "--pallas-dump after the tests"
        )
    return Path(value)


def names(value: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in value.split(","))
    if not all(found):
        raise ValueError(f"{value!r} is not a list of targets; write it as v5e,v6e")
    return found


def _switches(value: str) -> tuple[str, ...]:
    from pallas_debug.compiler import switches

    return switches.parse(value)


def _mode(value: str) -> str:
    if value not in MODES:  # with parameters, which need jax
        from pallas_debug.installed import require_jax

        require_jax(f"{value!r}")
        from pallas_debug.session import Mode

        Mode.parse(value)
    return value


def _checks(value: str) -> tuple[str, ...]:
    from pallas_debug.checks.names import parse

    return parse(value)


def _switch(value: str) -> bool:
    if value.lower() in ("on", "true", "yes", "1"):
        return True
    if value.lower() in ("off", "false", "no", "0"):
        return False
    raise ValueError(f"{value!r} is neither on nor off")


def _chip(value: str) -> str:
    if "," in value or not value.strip():
        raise ValueError(f"{value!r} is not a single target, such as v6e")
    return value


def _seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise ValueError(f"{value!r} is not a number of seconds greater than 0")
    return seconds


OPTIONS = (
    Option(
        name="verify",
        metavar="v5e,v6e",
        const="on",
        parse=names,
        help="judge every kernel: run it on the kernel machine, analyse it statically, and compile "
        "it for these chips (default: those of --pallas-target); a fault fails the test, and a "
        "table at the end lists the kernels",
    ),
    Option(
        name="sanitize",
        metavar="",
        const="on",
        parse=_switch,
        help="like --pallas-verify, without the static analysis and the compiler",
    ),
    Option(
        name="check",
        metavar="nan,index",
        const=DEFAULT_CHECKS,
        parse=_checks,
        help="like --pallas-sanitize, without races and faults of other kinds than these: "
        f"{CHECKS}, or all; on an accelerator, by code that is inserted into the kernels",
    ),
    Option(
        name="interpret",
        metavar="MODE",
        const="auto",
        parse=_mode,
        help="like --pallas-sanitize, without judging: run kernels on the kernel machine (auto, "
        "machine), in one of jax's interpreters (hlo, tpu, gpu), with parameters as in "
        "tpu,detect_races,num_cores_or_threads=2, or as the code selects (off); auto is the "
        "default when dumping on a machine without an accelerator",
    ),
    Option(
        name="dump",
        metavar="DIR",
        const=DUMPS,
        parse=_directory,
        help=f"compile every kernel that the tests lower, and save all stages in DIR ({DUMPS!r})",
    ),
    Option(
        name="target",
        metavar="v5e,v6e",
        parse=names,
        help="chips to compile for; kernels that query their chip get the first one (default: v5e)",
    ),
    Option(
        name="timeout",
        metavar="SECONDS",
        parse=_seconds,
        help="maximum seconds for one compilation (default: 120)",
    ),
    Option(
        name="switch",
        metavar="NAMES",
        parse=_switches,
        help="switches for each compilation, as for `pallas-debug dump --switch`",
    ),
    Option(
        name="pretend",
        metavar="v6e",
        parse=_chip,
        help="let jax's devices answer as this chip, for code that queries jax.default_backend(), "
        "a device's platform or device_kind, or jax.devices('tpu') before it calls a kernel; "
        "programs still run on the CPU, kernels in an interpret mode",
        is_setting=True,
    ),
    Option(
        name="update-baselines",
        metavar="on",
        parse=_switch,
        help="record the current cycles of kernels as the baselines of "
        "`pallas.assert_cycles_within`, instead of comparing them",
        is_setting=True,
    ),
)


def named(name: str) -> Option:
    return next(option for option in OPTIONS if option.name == name)


def add(parser: pytest.Parser) -> None:
    group = parser.getgroup("pallas", "Pallas kernels (pallas-debug)")
    for option in OPTIONS:
        parser.addini(option.ini, f"{option.help} (as {option.flag})", default=None)
        if option.is_setting:
            continue
        text = f"{option.help}. ini: {option.ini}, environment: {option.environment}"
        value: dict[str, Any] = {"action": "store_const"}
        if option.metavar:
            nargs = None if option.const is None else "?"
            value = {"metavar": option.metavar, "nargs": nargs}
        group.addoption(
            option.flag,
            **value,
            const=option.const,
            default=None,
            help=text.replace("%", "%%"),
        )


def are_given(config: pytest.Config) -> bool:
    """Return whether any option is given.

    Raises:
      pytest.UsageError: an invalid value; the message includes its location.
    """
    found = [value(config, option) for option in OPTIONS]  # check each of them
    return any(one is not None for one in found)


def value(config: pytest.Config, option: Option) -> Any:
    """Return the parsed value of one option, or None.

    Raises:
      pytest.UsageError: an invalid value; the message includes its location.
    """
    places = (
        (option.flag, getattr(config.option, option.ini, None)),
        (f"the environment variable {option.environment}", os.environ.get(option.environment)),
        (f"the ini option {option.ini}", config.getini(option.ini)),
    )
    for place, text in places:
        if text is None or text == "":
            continue
        if option.const is not None and Path(text.partition("::")[0]).is_file():
            raise pytest.UsageError(
                f"{place}: {text!r} is a file, not a value of this option; put tests before it, or "
                f"write {option.flag}={option.const}"
            )
        try:
            return option.parse(text)
        except Exception as error:
            from pallas_debug.errors import PallasDebugError

            if not isinstance(error, ValueError | PallasDebugError):
                raise
            raise pytest.UsageError(f"{place}: {error}") from error
    return None
