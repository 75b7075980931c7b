"""Lowering of scripts in a confined, reused process."""

from __future__ import annotations

import contextlib
import json
import os
import select
import time
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, cast

from pallas_debug.model import Failure
from pallas_debug.reproduce import vet
from pallas_debug.reproduce.confined import ConfinedProcess
from pallas_debug.reproduce.shrinking.worker import FAILURE, LENGTH, MODULE, write

_WORKER = """\
import sys

sys.path.insert(0, sys.argv[1])
from pallas_debug.reproduce.shrinking import worker

worker.main()
"""

_ROOT = Path(__file__).parents[3]
_MAX_REPLY = 256 * 2**20
_MAX_PART = 2**16

LOST = "the process that lowered the kernel died or did not answer"
"""Failure message if there was no answer."""


class Lowerer:
    """Lowers scripts from `script_of`, in one child that is replaced when it dies.

    Args:
      seconds: total wall time.
    """

    def __init__(self, *, seconds: float) -> None:
        self._ends = time.monotonic() + seconds
        self._child: ConfinedProcess | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def lower(self, script: str, *, seconds: float) -> bytes | Failure:
        """Return the StableHLO bytecode of a script, or the failure to lower it.

        Raises:
          CannotRunError: the script fails the check, or no process can be started.
        """
        vet.require(script)
        if self._child is None:
            self._start()
        assert self._child is not None
        process = self._child.process
        try:
            write(cast(BinaryIO, process.stdin), script.encode())
            reply = _read(cast(BinaryIO, process.stdout), time.monotonic() + seconds)
            return _decoded(reply)
        except (OSError, ValueError, KeyError, TypeError):  # it died, or sent an invalid reply
            self._stack.close()
            self._child = None
            return Failure(stage="lowering", type="crash", message=LOST)

    def _start(self) -> None:
        seconds = max(self._ends - time.monotonic(), 1.0)
        child = ConfinedProcess(_WORKER, seconds=seconds, arguments=[str(_ROOT)], is_asked=True)
        self._child = self._stack.enter_context(child)


def _decoded(reply: bytes) -> bytes | Failure:
    kind, content = reply[:1], reply[1:]
    if kind == MODULE:
        return content
    if kind != FAILURE:
        raise ValueError(kind)
    record = json.loads(content)
    return Failure(stage="lowering", type=str(record["type"]), message=str(record["message"]))


def _read(pipe: BinaryIO, ends: float) -> bytes:
    """Read a reply.

    Raises:
      OSError: it does not arrive, or not in time.
      ValueError: it is too long.
    """
    length = int.from_bytes(_exactly(pipe, LENGTH, ends), "big")
    if length > _MAX_REPLY:
        raise ValueError(length)
    return _exactly(pipe, length, ends)


def _exactly(pipe: BinaryIO, wanted: int, ends: float) -> bytes:
    parts = bytearray()
    while len(parts) < wanted:
        left = ends - time.monotonic()
        if left <= 0 or not select.select([pipe], [], [], left)[0]:
            raise TimeoutError
        part = os.read(pipe.fileno(), min(wanted - len(parts), _MAX_PART))
        if not part:
            raise BrokenPipeError
        parts += part
    return bytes(parts)
