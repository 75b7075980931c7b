"""Exceptions of jax's interpreters, with the kernel that raised them and the line of its call.

An interpreter raises in a callback of the host. jax's runtime passes on only the text, below frames
of its own and without notes, so the kernel of each text is kept here.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pallas_debug.bridge.jaxprs import lines
from pallas_debug.bridge.jaxprs.params import name_of
from pallas_debug.errors import PallasDebugError

MAX_RAISED = 100
"""Maximum number of exceptions whose kernels are kept."""

_FRAME = '\n  File "'

_local = threading.local()
_raised: OrderedDict[str, str] = OrderedDict()


def naming(rule: Callable[..., Any], params: Mapping[str, Any]) -> Callable[..., Any]:
    """Lowering rule of an interpreter that adds the kernel to exceptions, also of its callbacks.

    Args:
      rule: jax's rule.
      params: parameters of the kernel.
    """

    def lower(context: Any, *nodes: Any) -> Any:
        line = lines.of_call()
        where = "an unknown line" if line is None else f"{line.file}:{line.line}: {line.text}"
        note = f"in kernel `{name_of(params)}`, called at {where}"
        before, _local.note = getattr(_local, "note", None), note
        try:
            return rule(context, *nodes)
        except PallasDebugError:
            raise
        except Exception as error:
            error.add_note(note)
            raise
        finally:
            _local.note = before

    return lower


def named(callback: Callable[..., Any]) -> Callable[..., Any]:
    """Return a callback whose exceptions are attributed to the kernel that this thread lowers."""
    note = getattr(_local, "note", None)
    if note is None:
        return callback

    @functools.wraps(callback)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _attributing(note):
            return callback(*args, **kwargs)

    return call


@contextlib.contextmanager
def _attributing(note: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        own = f"{type(error).__name__}: {error}"  # has frames itself if it is of another core
        _raised[own.rpartition(_FRAME)[2].partition("\n")[2] or own] = note
        while len(_raised) > MAX_RAISED:
            _raised.popitem(last=False)
        raise


def message(error: BaseException) -> str | None:
    """Text of a kernel's exception in that of jax's runtime, with the kernel; None for others."""
    text = str(error)
    return next((f"{own}\n{note}" for own, note in [*_raised.items()][::-1] if own in text), None)


def unwrap(error: BaseException) -> None:
    """Add a kernel's own message, without the frames of jax, to an exception of jax's runtime."""
    own = message(error)
    if own is not None and own not in getattr(error, "__notes__", ()):
        error.add_note(own)
