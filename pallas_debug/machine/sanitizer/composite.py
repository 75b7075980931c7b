"""Group of observers of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pallas_debug.machine.loops import ChunkAccess
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.threads import Thread

_EVENTS = tuple(
    name
    for name, value in vars(MachineObserver).items()
    if callable(value) and not name.startswith("_") and name not in ("evaluate", "accepts_chunk")
)


class ObserverGroup(MachineObserver):
    """Forwards each event to the observers that handle it, in order.

    Args:
      observers: at most one of them evaluates units of plain operations.
    """

    def __init__(self, observers: Iterable[MachineObserver]) -> None:
        self.observers: Sequence[MachineObserver] = tuple(observers)
        evaluating = [observer for observer in self.observers if observer.evaluates]
        assert len(evaluating) <= 1, "two observers evaluate"
        for observer in evaluating:
            self.evaluates = True
            self.evaluate = observer.evaluate  # type: ignore[method-assign]
        for name in _EVENTS:
            handlers = [
                getattr(observer, name)
                for observer in self.observers
                if getattr(type(observer), name) is not getattr(MachineObserver, name)
            ]
            if handlers:
                setattr(self, name, handlers[0] if len(handlers) == 1 else _all(handlers))

    @property
    def follows_loops(self) -> bool:  # type: ignore[override]
        return any(observer.follows_loops for observer in self.observers)

    def accepts_chunk(self, thread: Thread, accesses: Sequence[ChunkAccess]) -> bool:
        return all(observer.accepts_chunk(thread, accesses) for observer in self.observers)


def _all(handlers: Sequence[Callable[..., None]]) -> Callable[..., None]:
    def handle(*args: Any, **kwargs: Any) -> None:
        for handler in handlers:
            handler(*args, **kwargs)

    return handle
