"""Combination of the options, with a check for contradictions.

Imported when an option, a marker or a fixture needs it: the class alone costs half a millisecond.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from pallas_debug_pytest.options import (
    DEFAULT_TARGET,
    OPTIONS,
    SANITIZE,
    SWITCH,
    checks,
    switch,
    value,
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Effective options of a run, from all sources."""

    dump: Path | None
    targets: tuple[str, ...]
    stages: tuple[str, ...]
    interpret: str | None
    pretend: str | None
    timeout: float | None
    checks: tuple[str, ...]
    verify: tuple[str, ...]
    sanitize: bool
    hints: bool
    hang: float | None
    stop_after: float | None
    switches: tuple[str, ...]
    update_baselines: bool
    names_target: bool

    @property
    def watches(self) -> bool:
        """True if the whole run is watched, not only tests with a marker or a fixture."""
        asked = (
            self.dump,
            self.interpret,
            self.pretend,
            self.checks,
            self.verify,
        )
        return any(one not in (None, (), False) for one in asked)

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
    found = config.stash.get(SETTINGS, None)
    if found is None:
        found = config.stash[SETTINGS] = _resolve(config)
    return found


def _resolve(config: pytest.Config) -> Settings:
    """Combine the options.

    Raises:
      pytest.UsageError: an invalid value, or contradicting ones; the message includes the location.
    """
    found = {option.name: value(config, option) for option in OPTIONS}
    dump, timeout, hang = found["dump"], found["timeout"], found["hang"]
    sanitize = switch(found["sanitize"] or "off")
    verify = _names(found["verify"] or "")
    own = tuple(name for name in verify if name != "all")
    pretends = SWITCH.get((found["pretend"] or "off").lower())
    pretended = (found["pretend"],) if found["pretend"] and pretends is None else ()
    targets = _names(found["target"] or "") or own or pretended or (DEFAULT_TARGET,)
    settings = Settings(
        dump=None if dump is None else config.invocation_params.dir / dump,
        targets=targets,
        stages=_names(found["stages"] or ""),
        interpret=_mode(found, sanitize=sanitize, verify=bool(verify)),
        pretend=targets[0] if pretends else next(iter(pretended), None),
        timeout=None if timeout is None else float(timeout),
        checks=() if sanitize or verify else checks(found["check"] or "") if found["check"] else (),
        verify=verify,
        sanitize=sanitize,
        hints=switch(found["hints"] or "on"),
        hang=None if hang is None else float(hang),
        stop_after=None if found["stop-after"] is None else float(found["stop-after"]),
        switches=_names(found["switch"] or ""),
        update_baselines=switch(found["update-baselines"] or "off"),
        names_target=found["target"] is not None,
    )
    if config.getoption("--pallas-timeout") is not None and not settings.watches:
        raise pytest.UsageError(
            "--pallas-timeout has no effect by itself; pass --pallas-dump as well"
        )
    return settings


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _mode(found: Mapping[str, str | None], *, sanitize: bool, verify: bool) -> str | None:
    """Return the interpret mode: the kernel machine's if an option judges what kernels do.

    Raises:
      pytest.UsageError: another mode was requested.
    """
    mode = found["interpret"]
    kind = (mode or "auto").partition(",")[0].strip()
    asked = {
        "sanitize": sanitize,
        "verify": verify,
        "check": found["check"] is not None and kind != "off",  # inserted into the kernels
    }
    option = next((name for name, is_asked in asked.items() if is_asked), None)
    if option is not None and kind not in ("auto", "machine"):
        raise pytest.UsageError(
            f"--pallas-{option} contradicts --pallas-interpret={mode}: only the kernel machine "
            "observes what kernels do; pass only one of them"
        )
    if not sanitize and not verify:
        return mode
    return mode if mode is not None and mode.startswith(SANITIZE) else SANITIZE
