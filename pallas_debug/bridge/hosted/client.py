"""jax client on which a host evaluates operations while a program waits for its callback.

The program's client has a thread for each device, and all of them may be waiting. This client runs
in the thread that calls it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import jax

from pallas_debug.bridge.active import without_user_contexts
from pallas_debug.bridge.jaxcompat import mesh_lib, xla_client


@functools.cache
def _device() -> Any:
    return xla_client.make_cpu_client(asynchronous=False, num_devices=1).local_devices()[0]


@contextlib.contextmanager
def evaluating(*, enable_x64: bool) -> Iterator[None]:
    """Evaluate this thread's jax operations on our own client."""
    with (
        without_user_contexts(),
        jax.debug_nans(False),  # jax looks at the kernel's results
        jax.debug_infs(False),
        jax.enable_x64(enable_x64),
        jax.default_device(_device()),
        # Under `shard_map` outside of jit, this thread is in its context.
        mesh_lib.use_abstract_mesh(mesh_lib.empty_abstract_mesh),
    ):
        yield
