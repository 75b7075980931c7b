"""Emulated chip for code that queries it during tracing or lowering on a machine without a TPU.

`pltpu.get_tpu_info()`, integer division and rank-1 blocks query jax's device kind. Within
`answering(...)`, they return that of the target. An abstract mesh set up by the user's code takes
precedence, and sessions leave a real TPU to answer for itself.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import TypeVar, cast

from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from pallas_debug.bridge import jaxcompat, patches
from pallas_debug.bridge.active import ThreadValue, user_context
from pallas_debug.bridge.jaxcompat import mesh_lib, xla_bridge
from pallas_debug.model import SourceLine, Target

_Answer = TypeVar("_Answer", str, int, str | None)

_context = user_context()
"""Makes the chip part of jax's cache keys, including `get_tpu_info`'s own (from 0.12 on)."""


_target = ThreadValue[Target | None](None)
_is_ours = ThreadValue(False)
_has_asked = ThreadValue(False)
"""Whether the user's code has queried its chip in this thread, in the context of `listening`."""
_askers: set[tuple[str, int]] = set()
"""Kernel functions that were traced after a query: their callers may have cached the answer."""

_everywhere: Target | None = None
"""Chip for threads without one of their own; set for the duration of a session."""
_pretends = False
"""Whether jax's devices answer as the chip too; see `pretend.py`."""


@contextlib.contextmanager
def answering(target: Target) -> Iterator[None]:
    """Present `target`'s chip to code in this thread."""
    in_context = _context(_key(target, pretend=_pretends))
    with _target.setting(target), patches.installed(patches.CHIP), in_context, _mesh_of(target):
        yield


def _mesh_of(target: Target) -> contextlib.AbstractContextManager[object]:
    """A mesh of a GPU, by which jax's back ends for GPUs know their chip; none for a TPU."""
    if target.platform == "tpu":
        return contextlib.nullcontext()
    device = AbstractDevice(
        device_kind=target.device_kind, num_cores=target.num_cores, platform="gpu"
    )
    mesh = AbstractMesh((), (), abstract_device=device)
    return cast(contextlib.AbstractContextManager[object], use_abstract_mesh(mesh))


@contextlib.contextmanager
def answering_everywhere(target: Target, *, pretend: bool = False) -> Iterator[None]:
    """Present `target`'s chip to code in all threads.

    Args:
      pretend: whether jax's devices answer as that chip too, `jax.default_backend()` among them.
    """
    global _everywhere, _pretends
    before = (_everywhere, _pretends, _context.get_global())
    areas = (patches.CHIP, *([patches.PRETEND] if pretend else []))
    with patches.installed(*areas), listening(), _mesh_of(target):
        _everywhere, _pretends = target, pretend
        _context.set_global(_key(target, pretend=pretend))
        _forget_backends()
        try:
            yield
        finally:
            _everywhere, _pretends = before[:2]
            _context.set_global(before[2])
            _forget_backends()


def _key(target: Target, *, pretend: bool) -> object:
    """Values that jax's caches depend on."""
    return target.device_kind, pretend, _is_ours.value


def _forget_backends() -> None:
    """Clear jax's cache of backends by name, which depends on pretending."""
    for function in (xla_bridge.get_backend, xla_bridge.local_devices):
        clear = getattr(function, "cache_clear", None)
        if clear is not None:
            clear()


def answered() -> Target | None:
    """Chip presented to code in this thread."""
    return _target.value or _everywhere


def pretended() -> Target | None:
    """Chip that jax's devices answer as in this thread; None if they answer as themselves."""
    return answered() if _pretends else None


def was_asked(kernel: SourceLine | None = None) -> str | None:
    """Device kind for which a kernel may have been traced; None if its code queried no chip.

    Args:
      kernel: first line of the kernel's function; once it was traced after a query, it always
        counts, because the code that calls it may have cached the answer.
    """
    target = answered()
    if _has_asked.value and kernel is not None:
        _askers.add(kernel.place)
    is_asker = _has_asked.value or (kernel is not None and kernel.place in _askers)
    return target.device_kind if is_asker and target else None


def note(answer: _Answer) -> _Answer:
    """Return an answer that differs between chips, for `was_asked`."""
    if not _is_ours.value:
        _has_asked.value = True
    return answer


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Forget the queries of this context at its end; those from before it still count."""
    jaxcompat.forget_tpu_info()  # a cached answer would bypass us
    with _has_asked.setting(_has_asked.value):
        yield


def lowering_ourselves() -> contextlib.AbstractContextManager[None]:
    """Do not count the queries of this thread, in which we lower a kernel that is traced."""
    return _is_ours.setting(True)


def _is_in_mesh_of_chips() -> bool:
    """Return whether a mesh says which TPU or GPU; one of simulated devices does not."""
    device = mesh_lib.get_abstract_mesh().abstract_device
    return device is not None and device.platform in ("tpu", "gpu")


def asking(original: Callable[[], _Answer], attribute: str) -> Callable[[], _Answer]:
    """Replacement for jax's query of the device kind or the number of cores."""

    @functools.wraps(original)
    def ask() -> _Answer:
        target = answered()
        given: _Answer | None = getattr(target, attribute, None)
        return original() if given is None or _is_in_mesh_of_chips() else note(given)

    return ask


def asking_for_tpu(original: Callable[[], bool]) -> Callable[[], bool]:
    """Replacement for `pltpu.is_tpu_device`: true if code is traced for a TPU, or if we pretend.

    Otherwise, a program with a code path for other devices would take the TPU's path only because
    it is watched.
    """

    @functools.wraps(original)
    def ask() -> bool:
        if _target.value is not None or _pretends or _is_in_mesh_of_chips():
            return original()
        return bool(xla_bridge.default_backend() == "tpu")

    return ask
