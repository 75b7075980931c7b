"""Compiler process: `python -m pallas_debug.compiler.worker` reads requests on standard input.

The pipes to the parent are moved to other descriptors first, so that everything that libtpu prints
on standard output or error goes to the log of the current request. The process ends with its
parent: a thread reads requests and exits at the end of the stream, even if a compilation hangs. It
then deletes the folder named on the command line, which holds its files. The arguments after it are
libtpu's flags whose value is a subfolder: `xla_mosaic_dump_to=mosaic`. Only `gpu=mosaic` stands for
another compiler, the back ends for GPUs, and the subfolder of their dumps.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from pallas_debug.compiler.protocol import GPU, CompileRequest, Reply, read_request, write_reply
from pallas_debug.compiler.targets import BUILTIN


def main() -> None:
    requests_in = os.fdopen(os.dup(0), "rb")
    replies_out = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    dumps: Path | None = None
    for argument in sys.argv[2:]:
        flag, _, name = argument.partition("=")
        if flag == GPU:
            dumps = Path(sys.argv[1], name)
            continue
        # By descriptor: libtpu splits its flags at white space and does not support quotes.
        folder = os.open(Path(sys.argv[1], name), os.O_RDONLY)
        os.environ["LIBTPU_INIT_ARGS"] += f" --{flag}=/proc/self/fd/{folder}"
    requests: queue.SimpleQueue[CompileRequest] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests_in, requests), daemon=True).start()
    _load(dumps)
    while True:
        request = requests.get()
        with _logged(request.log):
            reply = _serve(request, dumps)
        write_reply(replies_out, reply)


def _read(pipe: BinaryIO, requests: queue.SimpleQueue[CompileRequest]) -> None:
    try:
        while (request := read_request(pipe)) is not None:
            requests.put(request)
    finally:  # the parent has ended, or has no more requests
        try:
            from pallas_debug.store import scratch

            scratch.delete(Path(sys.argv[1]))
        finally:
            os._exit(0)


def _load(dumps: Path | None) -> None:
    """Preload the compiler while the parent lowers the first kernel.

    Its output goes to the startup log; errors are reported by the first request.
    """
    with contextlib.suppress(Exception):
        if dumps is not None:
            from pallas_debug.bridge import cuda

            cuda.load()
            return
        from pallas_debug.bridge import libtpu

        libtpu.describe(BUILTIN[0].topology)


def _serve(request: CompileRequest, dumps: Path | None) -> Reply:
    """Compile a module.

    Args:
      dumps: folder for the dumps of the back ends for GPUs; None to compile with libtpu.
    """
    from pallas_debug.bridge import libtpu

    start = time.perf_counter()
    try:
        if dumps is not None:
            from pallas_debug.compiler import gpu

            compiled = gpu.compile_module(request, dumps)
        else:
            compiled = libtpu.compile_module(
                request.module,
                topology=request.topology,
                num_devices=request.num_devices,
                options=request.options,
                wants_calls=request.wants_calls,
            )
    except Exception as error:  # noqa: BLE001 - whatever the compiler raises is the result
        return Reply(
            seconds=time.perf_counter() - start,
            error=str(error) or type(error).__name__,
            error_type=type(error).__name__,
            is_of_target=isinstance(error, libtpu.TopologyError),
        )
    return Reply(
        seconds=time.perf_counter() - start,
        device_kind=compiled.device_kind,
        build=compiled.build,
        memory=compiled.memory,
        calls=compiled.calls,
    )


@contextlib.contextmanager
def _logged(path: str) -> Iterator[None]:
    """Redirect standard output and error to `path`."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    yield
    sys.stdout.flush()
    sys.stderr.flush()


if __name__ == "__main__":
    main()
