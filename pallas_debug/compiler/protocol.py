"""Messages between parent and worker.

A message is one line of JSON, with the number of raw bytes that follow it. It is pure data: neither
side executes or unpickles anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import BinaryIO

from pallas_debug.errors import WorkerError
from pallas_debug.ir.hlo import PlacedCall
from pallas_debug.model import Memory

DUMPS = "mosaic"
"""Subfolder of the worker's folder to which the compiler dumps its passes."""

GPU = "gpu"
"""In place of one of libtpu's flags: the worker compiles for GPUs."""


@dataclass(frozen=True, kw_only=True)
class CompileRequest:
    """Request to compile a module.

    Attributes:
      log: file for the compiler's output.
      wants_calls: whether the reply lists the calls of labelled kernels.
    """

    topology: str | None
    num_devices: int
    log: str
    module: bytes = field(repr=False)
    options: Mapping[str, str] = field(default_factory=dict)
    wants_calls: bool = False


@dataclass(frozen=True, kw_only=True)
class Reply:
    """Result of a request; without an `error` there is an executable.

    Attributes:
      is_of_target: whether the error is about the target's topology, not about the module.
    """

    seconds: float
    device_kind: str | None = None
    build: str | None = None
    memory: Memory | None = None
    error: str | None = None
    error_type: str | None = None
    is_of_target: bool = False
    calls: tuple[PlacedCall, ...] = ()


def write_request(pipe: BinaryIO, request: CompileRequest) -> None:
    head = asdict(request)
    head["module"] = len(request.module)
    pipe.write(json.dumps(head).encode() + b"\n" + request.module)
    pipe.flush()


def read_request(pipe: BinaryIO) -> CompileRequest | None:
    """Read the next request; None at the end of the stream."""
    line = pipe.readline()
    if not line.endswith(b"\n"):
        return None
    head = json.loads(line)
    size = head.pop("module")
    module = pipe.read(size)
    return CompileRequest(module=module, **head) if len(module) == size else None


def write_reply(pipe: BinaryIO, reply: Reply) -> None:
    pipe.write(json.dumps(asdict(reply)).encode() + b"\n")
    pipe.flush()


def read_reply(pipe: BinaryIO) -> Reply | None:
    """Read the next reply; None at the end of the stream, when the worker has ended.

    Raises:
      WorkerError: the reply is invalid.
    """
    line = pipe.readline()
    if not line.endswith(b"\n"):
        return None
    import msgspec  # lazily, as it takes 25 ms and the worker only writes replies

    try:
        return msgspec.convert(json.loads(line), Reply)
    except (ValueError, RecursionError) as error:
        raise WorkerError(
            f"the compiler's process sent an invalid reply: {line[:200]!r} ({error})"
        ) from error
