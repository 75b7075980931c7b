"""Place to open: the one that the user asked for, or else that of the last session.

One small file in the platform's state directory stores the places for all dump directories. It is
always replaced as a whole; a file that cannot be read is ignored.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from pallas_debug.errors import UsageError
from pallas_debug.tui.model.browser import Browser, Entry, KernelStep, kernel_name

MAX_SPOTS = 100
"""Maximum number of sets of directories to remember; the oldest are dropped."""

MAX_BYTES = 1 << 20
"""Maximum size of a state file, which is far smaller in practice."""

MAX_NAMES = 20
"""Maximum number of names in a message."""

VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Spot:
    """Place at which a session ended.

    Attributes:
      roots: the directories, absolute, in the order in which they were named.
      dump: index of the directory.
      kernel: name of the kernel's folder.
      step: label of a stage or pass.
      line: line of its text, from 1.
      focus: name of the focused pane.
      toggles: states of switches, by the name of the action.
    """

    roots: tuple[str, ...] = ()
    dump: int = 0
    kernel: str | None = None
    target: str | None = None
    step: str | None = None
    line: int | None = None
    focus: str | None = None
    toggles: dict[str, bool] = field(default_factory=dict)

    def entry(self, browser: Browser) -> Entry | None:
        """Return the kernel, if it still exists."""
        wanted = Entry(self.dump, self.kernel or "")
        return wanted if wanted in browser.entries else None


@dataclass(frozen=True, kw_only=True)
class State:
    """State that is remembered between sessions.

    Attributes:
      theme: last theme that was chosen.
      spots: one spot for each set of directories, the latest last.
    """

    version: int = VERSION
    theme: str | None = None
    spots: tuple[Spot, ...] = ()

    def spot(self, roots: Sequence[Path]) -> Spot | None:
        """Return where the last session in these directories ended."""
        wanted = spot_of(roots).roots
        return next((s for s in self.spots if s.roots == wanted), None)

    def with_spot(self, spot: Spot) -> State:
        """Return the state with a new latest spot."""
        others = [s for s in self.spots if s.roots != spot.roots]
        return replace(self, spots=(*others, spot)[-MAX_SPOTS:])


def directory() -> Path:
    """Return the directory for state and crash reports; honours `XDG_STATE_HOME`."""
    import platformdirs

    return platformdirs.user_state_path("pallas-debug", appauthor=False)


def path() -> Path:
    """Return the state file."""
    return directory() / "browse.json"


def spot_of(roots: Sequence[Path]) -> Spot:
    """Return a spot in these directories without a kernel."""
    return Spot(roots=tuple(map(os.path.abspath, roots)))  # links stay


def load(file: Path) -> tuple[State, str | None]:
    """Return the state in a file, and a message if it cannot be used."""
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            return State(), f"{file} is larger than {MAX_BYTES:,} bytes and was ignored"
        state = msgspec.json.decode(content, type=State)
    except FileNotFoundError:
        return State(), None
    except OSError as error:
        return State(), f"{file} cannot be read: {error.strerror}"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return State(), f"{file} is not a state file of browse and was ignored"
    if state.version != VERSION:
        return State(), f"{file} belongs to another version of pallas-debug and was ignored"
    return state, None


def save(file: Path, state: State) -> str | None:
    """Replace the state file; return what went wrong, if anything."""
    from pallas_debug.store.disk import write_whole  # only at the end of a session

    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(file, msgspec.json.encode(state))
    except OSError as error:
        return f"{file} cannot be written: {error.strerror}"
    return None


# The place that the user asked for.


def find_kernel(browser: Browser, wanted: str) -> Entry:
    """Find a kernel by folder name, kernel name, or a unique start of either.

    Raises:
      UsageError: none or several match; the message lists them.
    """
    entries = browser.entries
    tests: list[Callable[[str], bool]] = [
        lambda name: name == wanted,
        lambda name: kernel_name(name) == wanted,
        lambda name: name.startswith(wanted),
    ]
    where = " and ".join(map(str, browser.roots))
    for test in tests:
        found = [e for e in entries if test(e.name)]
        first = [e for e in found if e.dump == found[0].dump]
        if len(first) == 1:  # the same kernel in both directories counts once
            return first[0]
        if found:
            listed = _listed(e.name for e in first)
            raise UsageError(
                f"{wanted!r} names several kernels in {where}: {listed}. Add more of the name."
            )
    names = dict.fromkeys(e.name for e in entries)
    raise UsageError(f"no kernel {wanted!r} in {where}; there are: {_listed(names)}")


def check_target(browser: Browser, entry: Entry, wanted: str) -> None:
    """Check that a kernel was compiled for a target.

    Raises:
      UsageError: the kernel was not compiled for it; the message lists its targets.
    """
    known = [c.target for c in browser.stored(entry).compilations]
    if wanted not in known:
        listed = ", ".join(known) or "none"
        raise UsageError(f"{entry.name} has no target {wanted!r}; there are: {listed}")


def matching(steps: Sequence[KernelStep], wanted: str) -> list[KernelStep]:
    """Find steps by label, name, number of the pass, or part of the label."""
    wanted = wanted.strip()
    number = int(wanted) if wanted.isdecimal() and len(wanted) < 10 else None
    exact = [s for s in steps if wanted in (s.label, s.name)]
    exact = exact or [s for s in steps if s.pass_ is not None and s.pass_.number == number]
    return exact or [s for s in steps if wanted and wanted in s.label]


def find_step(steps: Sequence[KernelStep], wanted: str) -> KernelStep:
    """Find one step.

    Raises:
      UsageError: none or several match; the message lists them.
    """
    found = matching(steps, wanted)
    if len(found) == 1:
        return found[0]
    several = "; several match" if found else ""
    listed = _listed(s.label for s in found or steps)
    raise UsageError(f"no stage or pass {wanted!r}{several}: {listed}")


def asked_for(
    browser: Browser,
    remembered: Spot | None,
    *,
    kernel: str | None = None,
    target: str | None = None,
    step: str | None = None,
    line: int | None = None,
) -> Spot | None:
    """Return the spot to open.

    Args:
      remembered: spot of the last session, for everything that the user does not ask for.
      line: line number, from 1.

    Raises:
      UsageError: there is no such kernel, target or pass.
    """
    if (kernel, target, step, line) == (None, None, None, None):
        return remembered
    if not browser.entries:
        raise UsageError(f"no kernels in {' and '.join(map(str, browser.roots))}")
    spot = remembered or spot_of(browser.roots)
    entry = spot.entry(browser) or browser.entries[0]
    if kernel is not None:
        entry = find_kernel(browser, kernel)
    if (entry.dump, entry.name) != (spot.dump, spot.kernel):
        spot = replace(spot, target=None, step=None, line=None)
    if target is not None:
        check_target(browser, entry, target)
    target = target or spot.target
    label = spot.step
    if step is not None:
        label = find_step(browser.steps(entry, target), step).label
        spot = replace(spot, line=None)
    wants_text = step is not None or line is not None
    return replace(
        spot,
        dump=entry.dump,
        kernel=entry.name,
        target=target,
        step=label,
        line=line or spot.line,
        focus="text" if wants_text else "kernels",
    )


def _listed(names: Iterable[str]) -> str:
    listed = list(names)
    more = f", and {len(listed) - MAX_NAMES} more" if len(listed) > MAX_NAMES else ""
    return (", ".join(listed[:MAX_NAMES]) or "none") + more
