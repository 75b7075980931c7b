"""Where one was, and how things were shown: kept from one `browse` to the next.

One file for all dump directories, in the platform's directory for states. It is small, written
whole and renamed, and nothing depends on it: one that cannot be read counts as none.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

PLACES = 100
"""Sets of directories that are remembered; of more, those that were not seen for longest go."""

MOST = 1 << 20
"""Bytes of a state file that are read: ours is far smaller."""

VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Spot:
    """Where one was in some directories.

    Attributes:
      roots: the directories, absolute, in the order in which they were named.
      dump: which of them, counted from 0.
      kernel: name of the kernel's folder.
      step: label of a stage or pass.
      line: of its text, counted from 1.
      focus: the pane that had it.
      toggles: what was switched, by the action's name.
    """

    roots: tuple[str, ...] = ()
    dump: int = 0
    kernel: str | None = None
    target: str | None = None
    step: str | None = None
    line: int | None = None
    focus: str | None = None
    toggles: dict[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class State:
    """All that is remembered.

    Attributes:
      theme: the one that was chosen last.
      spots: for each set of directories, the one seen last at the end.
    """

    version: int = VERSION
    theme: str | None = None
    spots: tuple[Spot, ...] = ()

    def spot(self, roots: Sequence[Path]) -> Spot | None:
        """Where one was in these directories."""
        wanted = _named(roots)
        return next((s for s in self.spots if s.roots == wanted), None)

    def with_spot(self, spot: Spot) -> State:
        """The state with this as the last place."""
        others = [s for s in self.spots if s.roots != spot.roots]
        return replace(self, spots=(*others, spot)[-PLACES:])


def directory() -> Path:
    """Where states and reports of crashes are kept; `XDG_STATE_HOME` is heeded."""
    import platformdirs

    return platformdirs.user_state_path("pallas-debug", appauthor=False)


def path() -> Path:
    """The file of the state."""
    return directory() / "browse.json"


def spot_of(roots: Sequence[Path]) -> Spot:
    """A place in these directories, nowhere in particular."""
    return Spot(roots=_named(roots))


def load(file: Path) -> tuple[State, str | None]:
    """The state in a file, and what is wrong with it where it cannot be used."""
    try:
        with file.open("rb") as opened:
            content = opened.read(MOST + 1)
        if len(content) > MOST:
            return State(), f"{file} is larger than {MOST:,} bytes and was ignored"
        state = msgspec.json.decode(content, type=State)
    except FileNotFoundError:
        return State(), None
    except OSError as error:
        return State(), f"{file} cannot be read: {error.strerror}"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return State(), f"{file} is no state of browse and was ignored"
    if state.version != VERSION:
        return State(), f"{file} is of another version of pallas-debug and was ignored"
    return state, None


def save(file: Path, state: State) -> str | None:
    """Write the state at once or not at all; what went wrong where it could not be written."""
    written: str | None = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, written = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
        with os.fdopen(handle, "wb") as opened:
            opened.write(msgspec.json.encode(state))
        Path(written).replace(file)
    except OSError as error:
        if written is not None:
            with contextlib.suppress(OSError):
                Path(written).unlink()
        return f"{file} cannot be written: {error.strerror}"
    return None


def _named(roots: Sequence[Path]) -> tuple[str, ...]:
    return tuple(os.path.abspath(root) for root in roots)  # noqa: PTH100 -- links stay as named
