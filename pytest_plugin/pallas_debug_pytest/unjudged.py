"""Errors at the end of runs with missing judgements, and of runs that could not start. No jax.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from pallas_debug.model import Gap
from pallas_debug.render import one_line, plural

EXIT = pytest.ExitCode.INTERNAL_ERROR
"""Exit status of a run without failures, but with a missing judgement: 3, as for the command."""

MAX_SHOWN = 3
"""Maximum number of kernels named in the error; the summary lists all of them."""


def line(gap: Gap) -> str:
    """Return the gap's line in the summary."""
    return f"NOT JUDGED: {_place(gap)}: {gap.reason}"


def not_done(problem: object) -> str:
    """Return the summary's line for a run that was not to judge kernels, and could not start."""
    return f"NOT DONE: {problem}"


def _place(gap: Gap) -> str:
    return f"{one_line(gap.kernel)} {gap.engine}".rstrip()


def nothing_ran(checked: Mapping[str, bool]) -> list[Gap]:
    """Return a gap if a run that was to judge kernels lowered some, but ran none to its end.

    Args:
      checked: kernels, by digest and name, and whether a test ran them to their end.
    """
    if not checked or any(checked.values()):
        return []
    names = list(dict.fromkeys(key.partition(" ")[2] for key in checked))
    more = f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
    shown = ", ".join(map(one_line, names[:MAX_SHOWN]))
    reason = (
        f"no test ran a kernel to its end ({shown}{more}): they were only lowered, or are in "
        "branches that were not taken"
    )
    return [Gap(kernel="the whole run", engine="", reason=reason)]


def elsewhere(gaps: Iterable[Gap]) -> list[str]:
    """Return lines on kernels that were traced for one chip and not compiled for the others."""
    return [
        f"kernel `{one_line(gap.kernel)}` was not compiled for {gap.engine}: {gap.reason}; "
        "with the fixture pallas_target a test runs for each chip"
        for gap in gaps
    ]


class _Text:
    """Text in place of a traceback, for the terminal and the short summary."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.reprcrash = _Crash(text)

    def __str__(self) -> str:
        return self.text

    def toterminal(self, writer: Any) -> None:
        writer.line(self.text, red=True)


class _Crash(NamedTuple):
    message: str


def text(missing: Sequence[Gap]) -> str:
    places = list(dict.fromkeys(map(_place, missing)))
    more = len(places) - MAX_SHOWN
    shown = ", ".join(places[:MAX_SHOWN]) + (f" and {more} more" if more > 0 else "")
    was = "was" if len(missing) == 1 else "were"
    return (
        f"{plural(len(missing), 'requested judgement')} {was} not made ({shown}): see the lines "
        "NOT CHECKED and NOT JUDGED. The absence of findings there proves nothing."
    )


def without(undone: Sequence[str]) -> str:
    """Return the error for a run whose tests ran without what its options or markers requested.

    Args:
      undone: activities that failed, as gerunds.
    """
    what = " and ".join(dict.fromkeys(undone))
    return (
        f"{what} failed, so tests ran as without pallas-debug: see the lines NOT DONE. Some may "
        "have been skipped, or have passed, for this reason alone."
    )


def fail(session: pytest.Session, missing: Iterable[Gap], undone: Sequence[str] = ()) -> None:
    """End the run with an error, in its summary and by its exit status.

    Args:
      session: pytest's session.
      missing: judgements that were requested but not made.
      undone: activities that failed, as gerunds, in a run that was not meant to judge kernels.
    """
    known = list(dict.fromkeys(missing))
    messages = [text(known)] if known else []
    messages += [without(undone)] if undone else []
    if not messages:
        return
    if session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = EXIT
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.stats.setdefault("error", []).extend(map(_report, messages))


def _report(words: str) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid="pallas-debug",
        location=("pallas-debug", None, "this run"),
        keywords={},
        outcome="failed",
        longrepr=_Text(words),  # type: ignore[arg-type]
        when="teardown",
    )
