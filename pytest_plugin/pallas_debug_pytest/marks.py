"""`@pytest.mark.pallas(...)`: checked against its signature when tests are collected.

Imported when a test has the marker or uses one of our fixtures. Imports jax only for a mode with
parameters, because only jax knows them.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from pallas_debug.compiler import targets
from pallas_debug.errors import MissingJaxError, UnknownTargetError
from pallas_debug.hooks import extra_targets, plugin_manager
from pallas_debug.installed import require_jax
from pallas_debug.model import Target
from pallas_debug_pytest import FIXTURES, options, requirements
from pallas_debug_pytest import settings as settings_


@dataclass(frozen=True, kw_only=True)
class Marks:
    """Combined markers of a test; None for anything left to the run's options."""

    interpret: str | None = None
    check: tuple[str, ...] | None = None
    targets: tuple[str, ...] | None = None
    requires: tuple[requirements.Need, ...] = ()
    pretend: bool | str | None = None

    @property
    def asks(self) -> bool:
        """True if the markers need a session, or change one."""
        return any(one is not None for one in (self.interpret, self.check, self.pretend))


MARKS = pytest.StashKey[Marks]()


def apply(config: pytest.Config, items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """Read the markers of these tests, and skip tests whose requirements are not met.

    Returns:
      In an xdist worker, tests with invalid markers, to be reported as collection errors: a
        `UsageError` would end the worker without giving its controller a reason.

    Raises:
      pytest.UsageError: an invalid marker; the message includes its location.
    """
    settings = settings_.of(config)
    extra = extra_targets(plugin_manager())
    broken = set()
    for item in items:
        try:
            _apply(item, settings, extra)
        except pytest.UsageError as error:
            if not hasattr(config, "workerinput"):
                raise
            broken.add(item)
            report = pytest.CollectReport(item.nodeid, "failed", str(error), [])
            config.hook.pytest_collectreport(report=report)
    return broken


def is_watched(item: pytest.Item) -> bool:
    """Return whether a test is watched because of its markers or a fixture."""
    if MARKS in item.stash and item.stash[MARKS].asks:
        return True
    return not FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))


def _apply(item: pytest.Item, settings: settings_.Settings, extra: tuple[Target, ...]) -> None:
    marks = item.stash[MARKS] = _read(item, extra)
    if is_watched(item):
        try:
            require_jax(f"{item.nodeid}, which asks for pallas-debug,")
        except MissingJaxError as error:
            raise pytest.UsageError(str(error)) from error
    target = _target(item, settings, extra) if marks.requires else None
    reason = unmet(marks, target) if target is not None else None
    if reason:
        item.add_marker(pytest.mark.skip(reason=reason))


def unmet(marks: Marks, target: Target) -> str | None:
    """Return why a test cannot run for this target, or None if it can."""
    reasons = filter(None, (need.missing(target) for need in marks.requires))
    return next(reasons, None)


def target_name(item: pytest.Item, settings: settings_.Settings) -> str:
    """Return the name of a test's chip: its own parameter, or its marker's or the run's chip."""
    pretend = item.stash.get(MARKS, Marks()).pretend
    name = pretend if isinstance(pretend, str) else settings.chip
    call = getattr(item, "callspec", None)
    return str(call.params.get("pallas_target", name) if call else name)


def _target(
    item: pytest.Item, settings: settings_.Settings, extra: tuple[Target, ...]
) -> Target | None:
    """Return the target, or None for this host's TPU, which is identified when the test starts."""
    name = target_name(item, settings)
    if name == targets.DEVICE.name:
        return None
    try:
        return targets.resolve(name, extra)
    except UnknownTargetError as error:
        raise pytest.UsageError(str(error)) from error


def _read(item: pytest.Item, extra: tuple[Target, ...]) -> Marks:
    found = Marks()
    for mark in reversed(list(item.iter_markers("pallas"))):  # the closest marker takes precedence
        try:
            found = _with(found, mark, extra)
        except ValueError as error:
            file, line, _ = item.location
            place = file if line is None else f"{file}:{line + 1}"
            raise pytest.UsageError(f"{place}: @pytest.mark.pallas: {error}") from error
    return found


def _with(marks: Marks, mark: pytest.Mark, extra: tuple[Target, ...]) -> Marks:
    if mark.args:
        raise ValueError(f"it takes only keyword arguments, not {mark.args[0]!r}; {_SIGNATURE}")
    for name, value in mark.kwargs.items():
        if name not in _READERS:
            close = difflib.get_close_matches(name, _READERS, 1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise ValueError(f"it has no argument {name!r}{hint}; {_SIGNATURE}")
        if value is None:
            continue
        read = _READERS[name](value, extra)
        if name == "requires":  # requirements of the class also apply
            read = (*marks.requires, *read)
        marks = replace(marks, **{name: read})
    return marks


_SIGNATURE = f"write {options.MARKER.partition(':')[0]}"


def _interpret(value: object, extra: object) -> str:
    if isinstance(value, bool):
        return "auto" if value else "off"
    if not isinstance(value, str):
        raise ValueError(f"interpret must be a mode, such as 'hlo', not {value!r}")
    options.named("interpret").check(value)
    return value


def _check(value: object, extra: object) -> tuple[str, ...]:
    if isinstance(value, bool):
        return options.DEFAULT_CHECKS if value else ()
    return options.checks(",".join(_names(value, "check")))


def _targets(value: object, extra: tuple[Target, ...]) -> tuple[str, ...]:
    names = _names(value, "targets")
    targets.resolve_all(names, extra)
    return names


def _names(value: object, argument: str) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, tuple | list) or not all(isinstance(n, str) for n in names):
        raise ValueError(
            f"{argument} must be names, as a string or a tuple of strings, not {value!r}"
        )
    return tuple(name.strip() for name in names)


def _pretend(value: object, extra: tuple[Target, ...]) -> bool | str:
    if isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise ValueError(f"pretend must be a target, such as 'v6e', True or False, not {value!r}")
    options.named("pretend").check(value)
    (name,) = _known_targets(value, extra)
    return name


def _known_targets(value: object, extra: tuple[Target, ...]) -> tuple[str, ...]:
    try:
        return _targets(value, extra)
    except UnknownTargetError as error:
        raise ValueError(str(error)) from error


_READERS: dict[str, Callable[[Any, tuple[Target, ...]], Any]] = {
    "interpret": _interpret,
    "check": _check,
    "targets": _known_targets,
    "pretend": _pretend,
    "requires": lambda value, extra: requirements.parse(value, extra),
}
