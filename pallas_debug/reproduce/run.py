"""Execution of a script in a child process, and its result."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import Literal

from pallas_debug import defaults
from pallas_debug.errors import CannotRunError
from pallas_debug.model import Failure
from pallas_debug.reproduce import vet
from pallas_debug.reproduce.confined import ConfinedProcess
from pallas_debug.reproduce.same import signature
from pallas_debug.reproduce.template import COMPILED, FAILED, NO_COMPILER

_FAILED = re.compile(
    r"^(?P<stage>lowering|compile) failed\n(?P<type>\w+): (?P<message>.*)\Z",
    re.DOTALL | re.MULTILINE,
)

Stage = Literal["lowering", "compile"]


@dataclass(frozen=True, kw_only=True)
class Shown:
    """Result of a script.

    Attributes:
      failure: None if the kernel compiled.
    """

    failure: Failure | None

    def is_as(self, recorded: Failure | None) -> bool:
        if self.failure is None or recorded is None:
            return self.failure is recorded
        return signature(self.failure) == signature(recorded)


def run(script: str, *, timeout: float = defaults.SCRIPT_TIMEOUT) -> Shown:
    """Run a script from `script_of` in a confined process.

    Raises:
      CannotRunError: it is not such a script, or did not reach the kernel, for example without
        libtpu.
    """
    vet.require(script)
    return executed(script, timeout=timeout)


def executed(script: str, *, timeout: float) -> Shown:
    """Run any script in a confined process; for `run` and its tests.

    Raises:
      CannotRunError: the script did not reach the kernel.
    """
    with ConfinedProcess(script, seconds=timeout) as child:
        code = child.wait()
        if code is None:
            message = f"the script did not end within {timeout:g} s and was stopped"
            return Shown(failure=Failure(stage="timeout", type="timeout", message=message))
        return _shown(code, child.out, child.err)


def _shown(code: int, out: str, err: str) -> Shown:
    if code == COMPILED:
        return Shown(failure=None)
    if code < 0:
        name = signal.Signals(-code).name
        lines = [line.strip() for line in err.splitlines() if line.strip()]
        words = [line for line in lines if "Check failed" in line] or lines[-1:]
        message = f"the script died of {name}. Its last output: {words[0] if words else 'none'}"
        return Shown(failure=Failure(stage="crash", type=name, message=message))
    match = _FAILED.search(out)
    if code == FAILED and match is not None:
        stage: Stage = "lowering" if match["stage"] == "lowering" else "compile"
        message = match["message"].rstrip("\n")
        return Shown(failure=Failure(stage=stage, type=match["type"], message=message))
    last = (out if code == NO_COMPILER else err).strip().splitlines()
    raise CannotRunError(
        f"the script exited with {code} before it reached the kernel: "
        f"{last[-1] if last else 'it printed nothing'}"
    )
