"""Worker that lowers scripts one by one, in the confined process that `lowering.py` starts.

A request is a script; the reply is a letter and the module, or the failure as JSON. Both are
prefixed with their length.
"""

from __future__ import annotations

import json
import os
import sys
from typing import BinaryIO

MODULE, FAILURE = b"M", b"F"
"""First byte of a reply."""

LENGTH = 4
"""Number of bytes of a length prefix, big-endian."""


def main() -> None:
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)  # keep prints of a kernel during tracing out of the reply
    from pallas_debug.bridge.lowering import lower
    from pallas_debug.bridge.unparse import scripts

    sys.stdin.close()
    while (script := read(requests)) is not None:
        try:
            kind, content = MODULE, scripts.lowered(script.decode())
        except lower.LoweringFailed as error:
            failure = {"type": error.failure.type, "message": error.failure.message}
            kind, content = FAILURE, json.dumps(failure).encode()
        write(replies, kind + content)


def read(stream: BinaryIO) -> bytes | None:
    """Read the next message; None at the end."""
    length = stream.read(LENGTH)
    if len(length) < LENGTH:
        return None
    return stream.read(int.from_bytes(length, "big"))


def write(stream: BinaryIO, content: bytes) -> None:
    stream.write(len(content).to_bytes(LENGTH, "big") + content)
    stream.flush()
