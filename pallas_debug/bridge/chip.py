"""Emulated chip for code that queries it during tracing or lowering on a machine without a TPU.

`pltpu.get_tpu_info()`, integer division and rank-1 blocks query jax's device kind. Within
`answering(...)`, they return that of the target. An abstract mesh set up by the user's code takes
precedence, and sessions leave a real TPU to answer for itself.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import TypeVar

from pallas_debug.bridge import contexts, jaxcompat, patches
from pallas_debug.bridge.jaxcompat import mesh_lib, source_info_util, xla_bridge
from pallas_debug.model import Target

_Answer = TypeVar("_Answer", str, int, str | None)

_context = contexts.make()
"""Makes the chip part of jax's cache keys, including `get_tpu_info`'s own (from 0.12 on)."""

Frame = tuple[str, str]
"""File and qualified name of a function, or of a module for what it does while it is imported."""

_RUNNERS = ("unittest", "absl", "hypothesis", "click", "pallas_debug", "pallas_debug_pytest")
"""Packages that run the user's functions: their frames say nothing about who asked."""

_OUTERMOST = ("_pytest", "pluggy", "pytest")
"""Packages whose callers, such as xdist's workers, run all tests and have asked for none."""


class _Chip(threading.local):
    target: Target | None = None
    asked: bool = False


_askers: set[Frame] = set()
"""Functions that have queried the chip, or called one that did: they may keep the answer."""

_local = _Chip()
_everywhere: Target | None = None
"""Chip for threads without one of their own; set for the duration of a session."""
_pretends = False
"""Whether jax's devices answer as the chip too; see `pretend.py`."""


@contextlib.contextmanager
def answering(target: Target) -> Iterator[None]:
    """Present `target`'s chip to code in this thread."""
    before, _local.target = _local.target, target
    try:
        with patches.installed(patches.CHIP), _context(_key(target, pretend=_pretends)):
            yield
    finally:
        _local.target = before


@contextlib.contextmanager
def answering_everywhere(target: Target, *, pretend: bool = False) -> Iterator[None]:
    """Present `target`'s chip to code in all threads.

    Args:
      pretend: whether jax's devices answer as that chip too, `jax.default_backend()` among them.
    """
    global _everywhere, _pretends
    before = (_everywhere, _pretends, _context.get_global())
    areas = (patches.CHIP, *([patches.PRETEND] if pretend else []))
    with patches.installed(*areas):
        _everywhere, _pretends = target, pretend
        _context.set_global(_key(target, pretend=pretend))
        _forget_backends()
        if before[0] is None:
            forget()
        try:
            yield
        finally:
            _everywhere, _pretends = before[:2]
            _context.set_global(before[2])
            _forget_backends()


def _key(target: Target, *, pretend: bool) -> object:
    """Values that jax's caches depend on."""
    return (target.device_kind, "devices") if pretend else target.device_kind


def _forget_backends() -> None:
    """Clear jax's cache of backends by name, which depends on pretending."""
    for function in (xla_bridge.get_backend, xla_bridge.local_devices):
        clear = getattr(function, "cache_clear", None)
        if clear is not None:
            clear()


def answered() -> Target | None:
    """Chip presented to code in this thread."""
    return _local.target or _everywhere


def pretended() -> Target | None:
    """Chip that jax's devices answer as in this thread; None if they answer as themselves."""
    return answered() if _pretends else None


def was_asked(calling: Iterable[Frame] = ()) -> str | None:
    """Device kind for which a kernel may have been traced; None if the code did not query it.

    The code counts as having queried it if this thread has done so since `forget`, or if one of the
    functions that lead to the kernel ever has, because it may have kept the answer.

    Args:
      calling: the functions that lead to the kernel.
    """
    target = answered()
    asked = _local.asked or any(
        frame in _askers or (frame[0], _MODULE) in _askers for frame in calling
    )
    return target.device_kind if asked and target else None


def note(answer: _Answer) -> _Answer:
    """Return an answer that differs between chips, for `was_asked`."""
    _local.asked = True
    _askers.update(_asking_frames())
    return answer


_MODULE = "<module>"


def _asking_frames() -> Iterator[Frame]:
    """The user's functions on the stack, up to the module whose import asks."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        code, name = frame.f_code, str(frame.f_globals.get("__name__", ""))
        is_users = source_info_util.is_user_filename(code.co_filename)
        if name.partition(".")[0] in _OUTERMOST:
            return
        if is_users and not _is_runner(name):
            yield code.co_filename, code.co_qualname
            if code.co_name == _MODULE:
                return
        frame = frame.f_back


def _is_runner(module: str) -> bool:
    package = module.partition(".")[0]
    return package in _RUNNERS or package in sys.stdlib_module_names


def _is_in_mesh_of_tpus() -> bool:
    """Return whether the user's code says which TPU; a mesh of simulated devices does not."""
    device = mesh_lib.get_abstract_mesh().abstract_device
    return device is not None and device.platform == "tpu"


@contextlib.contextmanager
def listening() -> Iterator[Callable[[], bool]]:
    """Find out whether code asks for its chip in this context, in this thread."""
    before = _local.asked
    forget()
    try:
        yield lambda: _local.asked
    finally:
        _local.asked = before or _local.asked


def forget() -> None:
    """Reset the queries of this thread; functions that made a query are remembered."""
    _local.asked = False
    jaxcompat.forget_tpu_info()  # a cached answer would bypass us


def asking_kind(original: Callable[[], str]) -> Callable[[], str]:
    """Replacement for jax's query of the device kind."""
    return _asking(original, lambda target: target.device_kind)


def asking_cores(original: Callable[[], int]) -> Callable[[], int]:
    """Replacement for jax's query of the number of cores."""
    return _asking(original, lambda target: target.num_cores)


def asking_for_tpu(original: Callable[[], bool]) -> Callable[[], bool]:
    """Replacement for `pltpu.is_tpu_device`: true if code is traced for a TPU, or if we pretend.

    Otherwise, a program with a code path for other devices would take the TPU's path only because
    it is watched.
    """

    @functools.wraps(original)
    def ask() -> bool:
        if _local.target is not None or _pretends or _is_in_mesh_of_tpus():
            return original()
        return bool(xla_bridge.default_backend() == "tpu")

    return ask


def _asking(
    original: Callable[[], _Answer], answer: Callable[[Target], _Answer | None]
) -> Callable[[], _Answer]:
    @functools.wraps(original)
    def ask() -> _Answer:
        target = answered()
        if target is None or _is_in_mesh_of_tpus():
            return original()
        given = answer(target)
        if given is None:
            return original()
        return note(given)

    return ask
