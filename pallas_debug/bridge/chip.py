"""Emulated chip for code that queries it during tracing or lowering on a machine without a TPU.

`pltpu.get_tpu_info()`, integer division and rank-1 blocks query jax's device kind. Within
`answering(...)`, they return that of the target. An abstract mesh set up by the user's code takes
precedence, and sessions leave a real TPU to answer for itself.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import jax
from jax._src import mesh as mesh_lib

try:
    from jax._src import tpu_info as tpu_info  # from jax 0.11 on
except ImportError:
    from jax._src.pallas.mosaic import tpu_info as tpu_info

from pallas_debug.bridge import patches
from pallas_debug.model import Target

_Answer = TypeVar("_Answer", str, int)

_context = jax.make_user_context(None)
"""Makes the chip part of jax's cache keys, including `get_tpu_info`'s own (from 0.12 on)."""


class _Chip(threading.local):
    target: Target | None = None
    asked: bool = False


_local = _Chip()
_everywhere: Target | None = None
"""Chip for threads without one of their own; set for the duration of a session."""


@contextlib.contextmanager
def answering(target: Target) -> Iterator[None]:
    """Present `target`'s chip to code in this thread."""
    before, _local.target = _local.target, target
    try:
        with patches.installed(patches.CHIP), _context(target.device_kind):
            yield
    finally:
        _local.target = before


@contextlib.contextmanager
def answering_everywhere(target: Target) -> Iterator[None]:
    """Present `target`'s chip to code in all threads."""
    global _everywhere
    before, _everywhere = (_everywhere, _context.get_global()), target
    _context.set_global(target.device_kind)
    try:
        with patches.installed(patches.CHIP):
            yield
    finally:
        _everywhere = before[0]
        _context.set_global(before[1])


def was_asked() -> str | None:
    """Device kind returned to queries in this thread since `forget`; None without queries."""
    target = _local.target or _everywhere
    return target.device_kind if _local.asked and target else None


def forget() -> None:
    """Reset `was_asked` in this thread."""
    _local.asked = False
    if hasattr(tpu_info.get_tpu_info, "cache_clear"):  # a cached answer would bypass us
        tpu_info.get_tpu_info.cache_clear()


def asking_kind(original: Callable[[], str]) -> Callable[[], str]:
    """Replacement for jax's query of the device kind."""
    return _asking(original, lambda target: target.device_kind)


def asking_cores(original: Callable[[], int]) -> Callable[[], int]:
    """Replacement for jax's query of the number of cores."""
    return _asking(original, lambda target: target.num_cores)


def _asking(
    original: Callable[[], _Answer], answer: Callable[[Target], _Answer | None]
) -> Callable[[], _Answer]:
    @functools.wraps(original)
    def ask() -> _Answer:
        target = _local.target or _everywhere
        if target is None or mesh_lib.get_abstract_mesh().abstract_device is not None:
            return original()
        given = answer(target)
        if given is None:
            return original()
        _local.asked = True
        return given

    return ask
