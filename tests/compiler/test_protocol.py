"""Protocol between parent and worker: round trips, ends of streams, invalid messages."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from pallas_debug.compiler.protocol import (
    CompileRequest,
    Reply,
    read_reply,
    read_request,
    write_reply,
    write_request,
)
from pallas_debug.errors import WorkerError
from pallas_debug.model import Memory

REQUESTS = [
    CompileRequest(
        topology="v5e:2x2", num_devices=4, log="/a b/ü\n.log", module=b"\n{}\x00\xff" * 9
    ),
    CompileRequest(
        topology=None, num_devices=1, log="", module=b"", options={"a": "b", "c": 'd"\n'}
    ),
]

REPLIES = [
    Reply(seconds=0.25),
    Reply(
        seconds=1,
        device_kind="TPU v5 lite",
        build="Oct 1",
        memory=Memory(generated_code=1, arguments=2, outputs=3, temporaries=2**40),
    ),
    Reply(seconds=0.0, error="E2003\nüé🦀 \udcff \x00", error_type="JaxRuntimeError"),
]


both = pytest.mark.parametrize(
    "write, read, messages",
    [(write_request, read_request, REQUESTS), (write_reply, read_reply, REPLIES)],
    ids=["requests", "replies"],
)


@both
def test_messages(write: Any, read: Any, messages: list[Any]) -> None:
    pipe = io.BytesIO()
    for message in messages:
        write(pipe, message)
    pipe.seek(0)
    assert [read(pipe) for _ in messages] == messages
    assert read(pipe) is None


@both
def test_a_message_that_ends_anywhere(write: Any, read: Any, messages: list[Any]) -> None:
    pipe = io.BytesIO()
    write(pipe, messages[1])
    whole = pipe.getvalue()
    for length in range(len(whole)):
        assert read(io.BytesIO(whole[:length])) is None


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"WARNING: could not determine TPU accelerator type",
        b"\x00\xff\xfe",
        *(b"null", b"[]", b"{}"),
        b'{"seconds": "fast"}',
        b'{"seconds": 1, "memory": {"arguments": 1}}',
        b'{"seconds": 1, "error": {"no": "text"}}',
        b"[" * 100_000,
    ],
)
def test_nonsense(line: bytes) -> None:
    with pytest.raises(WorkerError) as error:
        read_reply(io.BytesIO(line + b"\n" + json.dumps({"seconds": 1}).encode() + b"\n"))
    message = str(error.value)
    words = (line + b"\n")[:200]
    assert message.startswith(f"the compiler's process sent an invalid reply: {words!r} (")
    assert message.endswith(")")
    assert len(message) < 1500
