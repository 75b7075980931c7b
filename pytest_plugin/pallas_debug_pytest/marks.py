"""Settings of a run, and `@pytest.mark.pallas(...)`, checked when its test is set up.

Imported when an option, a marker or a fixture needs it: a dataclass alone costs half a millisecond.
Imports jax only for a mode with parameters, because only jax knows them.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pallas_debug import defaults
from pallas_debug.compiler import targets
from pallas_debug.errors import PallasDebugError, UsageError
from pallas_debug_pytest import FIXTURES, options
from pallas_debug_pytest.options import OPTIONS


@dataclass(frozen=True, kw_only=True)
class Marks:
    """Combined markers of a test; None for anything left to the run's options."""

    interpret: str | None = None
    check: tuple[str, ...] | None = None
    targets: tuple[str, ...] | None = None


def is_watched(item: pytest.Item, marked: Marks) -> bool:
    """Return whether a test is watched because of its markers or a fixture."""
    if marked.interpret is not None or marked.check is not None:
        return True
    return not FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))


def target_name(item: pytest.Item) -> str:
    """Return the name of a test's chip: its own parameter, or the run's chip."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return str(params.get("pallas_target", settings(item.config).chip))


def read(item: pytest.Item) -> Marks:
    """Read the markers of a test.

    Raises:
      UsageError: an invalid marker; the message includes its location.
    """
    found = Marks()
    for mark in reversed(list(item.iter_markers("pallas"))):  # the closest marker takes precedence
        try:
            found = _with(found, mark)
        except (ValueError, PallasDebugError) as error:
            file, line, _ = item.location
            place = file if line is None else f"{file}:{line + 1}"
            raise UsageError(f"{place}: @pytest.mark.pallas: {error}") from error
    return found


def _with(marks: Marks, mark: pytest.Mark) -> Marks:
    try:
        given = inspect.signature(Marks).bind(*mark.args, **mark.kwargs).arguments
    except TypeError as error:
        raise ValueError(f"{error}; write {options.MARKER.partition(':')[0]}") from error
    parsed = {name: _parsed(name, value) for name, value in given.items() if value is not None}
    return replace(marks, **parsed)


def _parsed(name: str, value: object) -> Any:
    """Return an argument's value, parsed by its option.

    Raises:
      ValueError, UsageError: it is invalid.
    """
    if name == "check" and isinstance(value, bool):
        return defaults.DEFAULT_CHECKS if value else ()
    if isinstance(value, tuple | list):
        value = ",".join(map(str, value))
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a string, not {value!r}")
    parsed = options.named(name.removesuffix("s")).parse(value)
    if name == "targets":
        targets.resolve_all(parsed)
    return parsed


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Effective options of a run, from all sources."""

    dump: Path | None
    targets: tuple[str, ...]
    interpret: str | None
    pretend: str | None
    timeout: float
    checks: tuple[str, ...]
    verify: tuple[str, ...]
    sanitize: bool
    switches: tuple[str, ...]
    update_baselines: bool

    @property
    def watches(self) -> bool:
        """True if the whole run is watched, not only tests with a marker or a fixture."""
        asked = (self.interpret, self.pretend)
        return self.judges or any(one is not None for one in asked)

    @property
    def judges(self) -> bool:
        """True if kernels should be compiled or checked, not just run."""
        return bool(self.dump or self.verify or self.checks or self.sanitize)

    @property
    def compiled(self) -> tuple[str, ...]:
        """Targets for which every kernel is compiled, to dump or judge it."""
        dumped = self.targets if self.dump else ()
        return tuple(dict.fromkeys((*dumped, *self.verify)))

    @property
    def chip(self) -> str:
        """Target presented to code that queries its chip."""
        return self.pretend or self.targets[0]


SETTINGS = pytest.StashKey[Settings]()


def settings(config: pytest.Config) -> Settings:
    """Return the settings of a run.

    Raises:
      pytest.UsageError: an invalid value, or contradicting ones; the message includes the location.
    """
    found = config.stash.get(SETTINGS, None)
    if found is None:
        found = config.stash[SETTINGS] = _resolve(config)
    return found


def _resolve(config: pytest.Config) -> Settings:
    found = {option.name: options.value(config, option) for option in OPTIONS}
    dump, verify, pretend = found["dump"], found["verify"] or (), found["pretend"]
    own = tuple(name for name in verify if name not in ("all", "on"))
    targets = found["target"] or own or (pretend or defaults.TARGET,)
    if verify == ("on",):
        verify = targets
    judges_all = found["sanitize"] or verify
    return Settings(
        dump=None if dump is None else config.invocation_params.dir / dump,
        targets=targets,
        interpret=_mode(found),
        pretend=pretend,
        timeout=found["timeout"] or defaults.COMPILE_TIMEOUT,
        checks=() if judges_all else found["check"] or (),
        verify=verify,
        sanitize=bool(found["sanitize"]),
        switches=found["switch"] or (),
        update_baselines=bool(found["update-baselines"]),
    )


def _mode(found: Mapping[str, Any]) -> str | None:
    """Return the interpret mode: the kernel machine's if an option judges what kernels do.

    Raises:
      pytest.UsageError: another mode was requested.
    """
    mode: str | None = found["interpret"]
    kind = (mode or "auto").partition(",")[0].strip()
    asked = [name for name in ("sanitize", "verify") if found[name]]
    if found["check"] is not None and kind != "off":  # for `off`, inserted into the kernels
        asked.append("check")
    if asked and kind not in ("auto", "machine"):
        raise pytest.UsageError(
            f"--pallas-{asked[0]} contradicts --pallas-interpret={mode}: only the kernel machine "
            "observes what kernels do; pass only one of them"
        )
    if not found["sanitize"] and not found["verify"]:
        return mode
    is_sanitized = mode is not None and mode.startswith(defaults.SANITIZE_MODE)
    return mode if is_sanitized else defaults.SANITIZE_MODE
