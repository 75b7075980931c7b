"""A shell in tmux, in which tests run the installed command."""

from __future__ import annotations

import subprocess
import time
import uuid

SECONDS = 60.0


class Tmux:
    """A session with a program in it, usually a shell; use as a context manager.

    Args:
      options: of `tmux new-session`.
    """

    def __init__(self, *options: str, program: str, columns: int = 100, rows: int = 24) -> None:
        # A name of its own: the server of the test before may still be ending.
        self._words = ["tmux", "-L", f"pallas-debug-{uuid.uuid4().hex}", "-f", "/dev/null"]
        size = ("-x", str(columns), "-y", str(rows))
        self.run("new-session", "-d", *size, *options, program)

    def __enter__(self) -> Tmux:
        return self

    def __exit__(self, *_: object) -> None:
        self.run("kill-server")

    def run(self, *words: str) -> str:
        return subprocess.run(
            [*self._words, *words], capture_output=True, text=True, timeout=SECONDS, check=False
        ).stdout

    def send(self, *keys: str) -> None:
        self.run("send-keys", *keys)

    def wait_for(self, *texts: str) -> str:
        """Wait until all of these are on the screen, and return it."""
        end = time.monotonic() + SECONDS
        while not all(text in (screen := self.run("capture-pane", "-p")) for text in texts):
            assert time.monotonic() < end, f"{texts} never came: {screen}"
            time.sleep(0.1)
        return screen
