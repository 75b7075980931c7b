"""`@pytest.mark.pallas(...)`: checked against its signature when tests are collected.

Imported when a test has the marker or uses one of our fixtures. Imports jax only for a mode with
parameters, because only jax knows them.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest

from pallas_debug import defaults
from pallas_debug.compiler import targets
from pallas_debug.errors import MissingJaxError, PallasDebugError, meant
from pallas_debug.hooks import extra_targets, plugin_manager
from pallas_debug.installed import require_jax
from pallas_debug.model import Target
from pallas_debug_pytest import FIXTURES, options
from pallas_debug_pytest.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Marks:
    """Combined markers of a test; None for anything left to the run's options."""

    interpret: str | None = None
    check: tuple[str, ...] | None = None
    targets: tuple[str, ...] | None = None
    pretend: bool | str | None = None


MARKS = pytest.StashKey[Marks]()


def apply(config: pytest.Config, items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """Read the markers of these tests.

    Returns:
      In an xdist worker, tests with invalid markers, to be reported as collection errors: a
        `UsageError` would end the worker without giving its controller a reason.

    Raises:
      pytest.UsageError: an invalid marker; the message includes its location.
    """
    extra = extra_targets(plugin_manager())
    broken = set()
    for item in items:
        try:
            item.stash[MARKS] = _read(item, extra)
            if is_watched(item):
                require_jax(f"{item.nodeid}, which asks for pallas-debug,")
        except (pytest.UsageError, MissingJaxError) as error:
            if not hasattr(config, "workerinput"):
                raise pytest.UsageError(str(error)) from error
            broken.add(item)
            report = pytest.CollectReport(item.nodeid, "failed", str(error), [])
            config.hook.pytest_collectreport(report=report)
    return broken


def is_watched(item: pytest.Item) -> bool:
    """Return whether a test is watched because of its markers or a fixture."""
    marks = item.stash.get(MARKS, Marks())
    if any(one is not None for one in (marks.interpret, marks.check, marks.pretend)):
        return True
    return not FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))


def target_name(item: pytest.Item, settings: Settings) -> str:
    """Return the name of a test's chip: its own parameter, or its marker's or the run's chip."""
    pretend = item.stash.get(MARKS, Marks()).pretend
    name = pretend if isinstance(pretend, str) else settings.chip
    call = getattr(item, "callspec", None)
    return str(call.params.get("pallas_target", name) if call else name)


def _read(item: pytest.Item, extra: tuple[Target, ...]) -> Marks:
    found = Marks()
    for mark in reversed(list(item.iter_markers("pallas"))):  # the closest marker takes precedence
        try:
            found = _with(found, mark, extra)
        except (ValueError, PallasDebugError) as error:
            file, line, _ = item.location
            place = file if line is None else f"{file}:{line + 1}"
            raise pytest.UsageError(f"{place}: @pytest.mark.pallas: {error}") from error
    return found


def _with(marks: Marks, mark: pytest.Mark, extra: tuple[Target, ...]) -> Marks:
    signature = f"write {options.MARKER.partition(':')[0]}"
    if mark.args:
        raise ValueError(f"it takes only keyword arguments, not {mark.args[0]!r}; {signature}")
    known = [field.name for field in fields(Marks)]
    for name, value in mark.kwargs.items():
        if name not in known:
            raise ValueError(f"it has no argument {name!r}{meant(name, known)}; {signature}")
        if value is not None:
            marks = replace(marks, **{name: _parsed(name, value, extra)})
    return marks


_EXAMPLES = {"interpret": "hlo", "check": "nan,index", "targets": "v5e,v6e", "pretend": "v6e"}


def _parsed(name: str, value: object, extra: tuple[Target, ...]) -> Any:
    """Return an argument's value: parsed by its option, if it is neither True nor False.

    Raises:
      ValueError, UsageError: it is invalid.
    """
    if isinstance(value, bool) and name != "targets":
        defaulted = {"interpret": ("off", "auto"), "check": ((), defaults.DEFAULT_CHECKS)}
        return defaulted.get(name, (False, True))[value]
    if isinstance(value, tuple | list) and name in ("check", "targets"):
        value = ",".join(map(str, value))
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a string, such as {_EXAMPLES[name]!r}, not {value!r}")
    parsed = options.named(name.removesuffix("s")).parse(value)
    if name in ("targets", "pretend") and not isinstance(parsed, bool):
        targets.resolve_all(parsed, extra)
    return parsed
