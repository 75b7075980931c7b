"""Combination of the options, with a check for contradictions.

Imported when an option, a marker or a fixture needs it: the class alone costs half a millisecond.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pallas_debug import defaults
from pallas_debug_pytest.options import OPTIONS, value


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Effective options of a run, from all sources."""

    dump: Path | None
    targets: tuple[str, ...]
    stages: tuple[str, ...]
    interpret: str | None
    pretend: str | None
    timeout: float
    checks: tuple[str, ...]
    verify: tuple[str, ...]
    sanitize: bool
    stop_after: float | None
    switches: tuple[str, ...]
    update_baselines: bool
    names_target: bool

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

    @property
    def speaks(self) -> bool:
        """True if the run has a header."""
        return self.watches or self.names_target


SETTINGS = pytest.StashKey[Settings]()


def of(config: pytest.Config) -> Settings:
    """Return the settings of a run.

    Raises:
      pytest.UsageError: an invalid value, or contradicting ones; the message includes the location.
    """
    found = config.stash.get(SETTINGS, None)
    if found is None:
        found = config.stash[SETTINGS] = _resolve(config)
    return found


def _resolve(config: pytest.Config) -> Settings:
    found = {option.name: value(config, option) for option in OPTIONS}
    dump, verify, pretend = found["dump"], found["verify"] or (), found["pretend"]
    pretended = (pretend,) if isinstance(pretend, str) else ()
    own = tuple(name for name in verify if name != "all")
    targets = found["target"] or own or pretended or (defaults.TARGETS,)
    judges_all = found["sanitize"] or verify
    settings = Settings(
        dump=None if dump is None else config.invocation_params.dir / dump,
        targets=targets,
        stages=found["stages"] or (),
        interpret=_mode(found),
        pretend=targets[0] if pretend is True else next(iter(pretended), None),
        timeout=found["timeout"] or defaults.COMPILE_TIMEOUT,
        checks=() if judges_all else found["check"] or (),
        verify=verify,
        sanitize=bool(found["sanitize"]),
        stop_after=found["stop-after"],
        switches=found["switch"] or (),
        update_baselines=bool(found["update-baselines"]),
        names_target=found["target"] is not None,
    )
    if config.getoption("--pallas-timeout") is not None and not settings.watches:
        raise pytest.UsageError(
            "--pallas-timeout has no effect by itself; pass --pallas-dump as well"
        )
    return settings


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
