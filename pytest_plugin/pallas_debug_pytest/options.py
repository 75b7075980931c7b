"""The options, each on the command line, in the ini file and in the environment.

The command line comes first, then the environment, then the ini file. On the command line the
default is None: only so can it be told from what was asked for.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

DUMPS = "dumps"
MODES = ("auto", "hlo", "tpu", "gpu", "off")


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option in its three spellings.

    Attributes:
      name: `dump`, for `--pallas-dump`, the ini's `pallas_dump`, `PALLAS_DEBUG_DUMP`.
      const: what the bare flag means; None where a value is required.
      check: raises `ValueError` for a value that makes no sense.
    """

    name: str
    metavar: str
    help: str
    check: Callable[[str], object]
    const: str | None = None

    @property
    def flag(self) -> str:
        return f"--pallas-{self.name}"

    @property
    def ini(self) -> str:
        return f"pallas_{self.name}"

    @property
    def environment(self) -> str:
        return f"PALLAS_DEBUG_{self.name.upper()}"


def _directory(value: str) -> None:
    if Path(value).is_file():
        raise ValueError(f"{value!r} is a file; name a directory to dump into")


def _target(value: str) -> None:
    if not all(part.strip() for part in value.split(",")):
        raise ValueError(f"{value!r} is no list of targets; write it as v5e,v6e")


def _mode(value: str) -> None:
    if value in MODES:
        return
    # Only jax knows what parameters there are, and it is not imported for a mode by itself.
    from pallas_debug.bridge.interpret_params import Mode
    from pallas_debug.errors import UsageError

    try:
        Mode.parse(value)
    except UsageError as error:
        raise ValueError(str(error)) from error


def _timeout(value: str) -> None:
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise ValueError(f"{value!r} is no number of seconds greater than 0")


OPTIONS = (
    Option(
        name="dump",
        metavar="DIR",
        const=DUMPS,
        check=_directory,
        help=f"compile every kernel that the tests lower, and keep all stages in DIR ({DUMPS!r})",
    ),
    Option(
        name="target",
        metavar="v5e,v6e",
        check=_target,
        help="chips to compile for; the first is also what kernels are told that ask for their "
        "chip (v5e)",
    ),
    Option(
        name="interpret",
        metavar="MODE",
        const="auto",
        check=_mode,
        help="run kernels in an interpret mode: hlo, tpu, gpu, auto (HLO, or TPU for kernels that "
        "need it) or off, with parameters as in tpu,detect_races,num_cores_or_threads=2; while "
        "dumping on a machine without an accelerator it is auto unless told",
    ),
    Option(
        name="timeout",
        metavar="SECONDS",
        check=_timeout,
        help="seconds that one compilation may take (120)",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What was asked for, from wherever."""

    dump: Path | None
    targets: tuple[str, ...]
    interpret: str | None
    timeout: float


def add(parser: pytest.Parser) -> None:
    group = parser.getgroup("pallas", "Pallas kernels (pallas-debug)")
    for option in OPTIONS:
        text = f"{option.help}. ini: {option.ini}, environment: {option.environment}"
        group.addoption(
            option.flag,
            metavar=option.metavar,
            nargs=None if option.const is None else "?",
            const=option.const,
            default=None,
            help=text.replace("%", "%%"),
        )
        parser.addini(option.ini, f"{option.help} (as {option.flag})", default=None)


def resolve(config: pytest.Config) -> Settings | None:
    """What is asked for, or None where nothing is.

    Raises:
      pytest.UsageError: a value that makes no sense; the message says where it stands.
    """
    found = {option.name: _value(config, option) for option in OPTIONS}
    if found["dump"] is None and found["interpret"] is None:
        for option in OPTIONS:
            if config.getoption(option.flag) is not None:
                raise pytest.UsageError(
                    f"{option.flag} does nothing by itself; give --pallas-dump as well"
                )
        return None
    dump = found["dump"]
    targets = found["target"] or "v5e"
    return Settings(
        dump=None if dump is None else config.invocation_params.dir / dump,
        targets=tuple(part.strip() for part in targets.split(",")),
        interpret=found["interpret"],
        timeout=float(found["timeout"] or 120.0),
    )


def _value(config: pytest.Config, option: Option) -> str | None:
    given = config.getoption(option.flag)
    if given is not None:
        _swallowed(config, option, given)
    places = (
        (option.flag, given),
        (f"the environment variable {option.environment}", os.environ.get(option.environment)),
        (f"the ini option {option.ini}", config.getini(option.ini)),
    )
    for place, value in places:
        if value is None or value == "":
            continue
        try:
            option.check(value)
        except ValueError as error:
            raise pytest.UsageError(f"{place}: {error}") from error
        return str(value)
    return None


def _swallowed(config: pytest.Config, option: Option, value: str) -> None:
    """`pytest --pallas-dump tests/`: the tests became the option's value."""
    if option.const is None:
        return
    args = [str(arg) for arg in config.invocation_params.args]
    for flag, after in itertools.pairwise(args):
        if flag == option.flag and after == value and Path(after.split("::")[0]).exists():
            raise pytest.UsageError(
                f"{option.flag} took {value!r} as its value. "
                f"Write {option.flag}={value} if that is meant, "
                f"else put {option.flag} behind the tests."
            )
