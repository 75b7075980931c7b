"""Open a stepping session: in the terminal UI, or as a plain prompt. Imports no jax."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pallas_debug.stepping import plain as plain_prompt
from pallas_debug.stepping.session import StepSession


def open_session(
    session: StepSession, notes: Sequence[str] = (), *, plain: bool | None = None
) -> None:
    """Open the terminal UI or the plain prompt on a session, until the user quits."""
    # Textual draws on standard error.
    has_terminal = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    if plain is None and has_terminal:
        from pallas_debug.tui.debugger import open_debugger  # Textual takes a while to import

        open_debugger(session, notes)
        return
    for note in notes:
        sys.stderr.write(f"note: {note}\n")
    plain_prompt.interact(session)
