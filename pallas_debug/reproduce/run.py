"""A script in a process of its own, and what came of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pallas_debug.errors import CannotRunError
from pallas_debug.model import Failure
from pallas_debug.reproduce.same import signature
from pallas_debug.reproduce.script import COMPILED, FAILED, NO_COMPILER

_FAILED = re.compile(
    r"^(?P<stage>lowering|compile) failed\n(?P<type>\w+): (?P<message>.*)\Z",
    re.DOTALL | re.MULTILINE,
)

Stage = Literal["lowering", "compile"]

DEFAULT_SECONDS = 120.0
"""That a script may run."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What a script showed.

    Attributes:
      failure: None where the kernel compiled.
    """

    failure: Failure | None

    def is_as(self, recorded: Failure | None) -> bool:
        """Whether it is what was recorded."""
        if self.failure is None or recorded is None:
            return self.failure is recorded
        return signature(self.failure) == signature(recorded)


def run(script: str, *, timeout: float = DEFAULT_SECONDS) -> Shown:
    """Run a script as anybody would, with nothing of ours in reach.

    Raises:
      CannotRunError: it never came to the kernel, such as for want of libtpu.
    """
    with tempfile.TemporaryDirectory(prefix="pallas-debug-") as folder:
        path = Path(folder, "reproduce.py")
        path.write_text(script)
        # libtpu leaves logs in TMPDIR.
        environment = {**os.environ, "TMPDIR": folder, "TPU_LOG_DIR": "disabled"}
        environment.pop("XLA_FLAGS", None)
        try:
            done = subprocess.run(
                [sys.executable, "-I", str(path)],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            message = f"the script did not end within {timeout:g} s and was stopped"
            return Shown(failure=Failure(stage="timeout", type="timeout", message=message))
    return _shown(done.returncode, done.stdout, done.stderr)


def _shown(code: int, out: str, err: str) -> Shown:
    if code == COMPILED:
        return Shown(failure=None)
    if code < 0:
        name = signal.Signals(-code).name
        lines = [line.strip() for line in err.splitlines() if line.strip()]
        words = [line for line in lines if "Check failed" in line] or lines[-1:]
        message = f"the script died of {name}. Its last words: {words[0] if words else 'none'}"
        return Shown(failure=Failure(stage="crash", type=name, message=message))
    said = _FAILED.search(out)
    if code == FAILED and said is not None:
        stage: Stage = "lowering" if said["stage"] == "lowering" else "compile"
        message = said["message"].rstrip("\n")
        return Shown(failure=Failure(stage=stage, type=said["type"], message=message))
    last = (out if code == NO_COMPILER else err).strip().splitlines()
    raise CannotRunError(
        f"the script ended with {code} and showed nothing of the kernel: "
        f"{last[-1] if last else 'it said nothing'}"
    )
