"""Compiler processes that outlive a session, and leases on them.

Loading libtpu takes half a second and 200 MB, so children are kept between sessions: a session
takes a `Lease`, which bounds how many children work for it, and returns a child after each request.
Idle children end at exit, and when this process dies (they notice the closed pipe). A forked
process starts with none.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Hashable

from pallas_debug.compiler.child import Child
from pallas_debug.errors import WorkerError

WORTH_A_CHILD, MANY = 1.0, 8
"""Seconds that a child has been at work, or waiting kernels, that justify another child."""

_LOOK_AGAIN = 0.25

STOPPED = "the pool of compiler processes was stopped"


class Lease:
    """A session's claim on children, and how busy they were for it.

    Args:
      jobs: maximum number of children that work for the lease at a time.
      key: returns the settings on which a child started now would depend.
      start: starts a child.
    """

    def __init__(
        self, *, jobs: int, key: Callable[[], Hashable], start: Callable[[], Child]
    ) -> None:
        self.jobs = jobs
        self.key = key
        self.start = start
        self.stopped = False
        self.held: set[Child] = set()
        self.starting = 0
        self.pending = 0

    def wants_another(self, of_key: list[Child]) -> bool:
        """Return whether waiting for one of these children takes longer than starting another.

        A child costs half a second of a core before it compiles anything: it is started for many
        kernels, or if a child has been at work for that long. Its first request loads libtpu.
        """
        waiting = self.pending - len(self.held) - self.starting
        now = time.monotonic()
        longest = max(now - child.taken if child.served > 1 else 0.0 for child in of_key)
        return waiting >= MANY or (waiting > 0 and longest > WORTH_A_CHILD)

    def forget(self) -> None:
        """Reset in a forked process."""
        self.held.clear()
        self.starting = self.pending = 0


class Children:
    """All children of a pool, leased or idle.

    There are never more children than the largest number requested by a current lease, except for
    idle children left by an earlier, larger lease.

    Args:
      keeps_idle: whether to keep idle children after the last lease.
    """

    def __init__(self, *, keeps_idle: bool) -> None:
        self.changed = threading.Condition()
        self._keeps_idle = keeps_idle
        self._alive: set[Child] = set()
        self._idle: list[Child] = []
        self._starting: list[Hashable] = []
        self._leases: set[Lease] = set()
        _everywhere.add(self)
        if keeps_idle:
            atexit.register(self.close)

    def add_pending(self, lease: Lease, count: int) -> None:
        """Change the number of pending work items that need a child."""
        with self.changed:
            lease.pending += count
            self.changed.notify_all()

    def take(self, lease: Lease) -> Child:
        """Return an idle child, a new child, or the next child that is released.

        Raises:
          WorkerError: the lease was stopped, or no child could be started.
        """
        while True:
            with self.changed:
                key = self._wanted_key(lease)
                child = self._idle_child(key) if _has_room(lease) else None
                evicted = None
                if child is not None:
                    lease.held.add(child)
                elif not _has_room(lease) or not self._is_worth_another(lease, key):
                    self.changed.wait(timeout=_LOOK_AGAIN)
                    continue
                elif self._is_full():
                    # They have another environment, otherwise one of them would have been used.
                    if not self._idle:
                        self.changed.wait(timeout=_LOOK_AGAIN)
                        continue
                    evicted = self._idle.pop(0)
                else:
                    self._starting.append(key)
                    lease.starting += 1
            if evicted is not None:
                self.drop(lease, evicted)
                continue
            is_new = child is None
            if child is None:
                child = self._start(lease, key)
            # A new child that has ended is returned too: the request then reports how it ended.
            if child.usable() or (is_new and not child.alive()):
                child.taken = time.monotonic()
                child.served += 1
                return child
            self.drop(lease, child)
            if is_new:
                raise WorkerError(
                    "the temporary files of the compiler's process were deleted as soon as it was "
                    "started. Something on this machine may clean up its temporary folder; set "
                    "TMPDIR to one that is left alone."
                )

    def warm(self, lease: Lease) -> None:
        """Start a child unless there is one."""
        with self.changed:
            if lease.stopped:
                return
            key = self._wanted_key(lease)
            if key in self._starting or self._of(key) or self._is_full():
                return
            self._starting.append(key)
            lease.starting += 1
        self.give_back(lease, self._start(lease, key))

    def give_back(self, lease: Lease, child: Child) -> None:
        with self.changed:
            lease.held.discard(child)
            self._idle.append(child)
            self.changed.notify_all()

    def drop(self, lease: Lease, child: Child) -> None:
        """End an unusable child."""
        child.kill()
        with self.changed:
            lease.held.discard(child)
            self._alive.discard(child)
            self.changed.notify_all()

    def release(self, lease: Lease, *, stop: bool) -> None:
        """End a lease. `stop` kills its children at work and, after the last lease, idle ones."""
        with self.changed:
            lease.stopped = True
            self._leases.discard(lease)
            self.changed.notify_all()
            is_last = not self._leases
            held = list(lease.held) if stop else []
        for child in held:
            child.stop()  # its thread then drops it
        if is_last and not self._keeps_idle:
            self.close()
        elif is_last and stop:
            self._end_idle()

    def _end_idle(self) -> None:
        """End idle children; they count as alive until they have exited."""
        with self.changed:
            due, self._idle = self._idle, []
        for child in due:
            child.kill()
        with self.changed:
            self._alive.difference_update(due)
            self.changed.notify_all()

    def close(self) -> None:
        """End all leases and children at once, even those at work."""
        with self.changed:
            for lease in self._leases:
                lease.stopped = True
            self._leases.clear()
            alive = list(self._alive)
        for child in alive:
            child.stop()
        for child in alive:
            child.kill()
        with self.changed:
            self._alive.difference_update(alive)
            self._idle.clear()
            self.changed.notify_all()

    def pids(self) -> list[int]:
        with self.changed:
            return [child.pid for child in self._alive if child.usable()]

    def disown(self) -> None:
        """Forget all children in a forked process, which does not own them.

        The threads that held locks are the parent's, so nothing here may wait for one.
        """
        self.changed = threading.Condition()
        for child in self._alive:
            child.disown()
        self._alive.clear()
        self._idle.clear()
        self._starting.clear()
        for lease in self._leases:
            lease.forget()

    # With the lock held:

    def _wanted_key(self, lease: Lease) -> Hashable:
        if lease.stopped:
            raise WorkerError(STOPPED)
        self._leases.add(lease)
        return lease.key()

    def _idle_child(self, key: Hashable) -> Child | None:
        """Take the idle child that was used last."""
        for child in reversed(self._idle):
            if child.key == key:
                self._idle.remove(child)
                return child
        return None

    def _of(self, key: Hashable) -> list[Child]:
        return [child for child in self._alive if child.key == key]

    def _is_full(self) -> bool:
        most = max((lease.jobs for lease in self._leases), default=0)
        return len(self._alive) + len(self._starting) >= most

    def _is_worth_another(self, lease: Lease, key: Hashable) -> bool:
        of_key = self._of(key)
        return lease.wants_another(of_key) if of_key else key not in self._starting

    # Without the lock:

    def _start(self, lease: Lease, key: Hashable) -> Child:
        """Start a child held by the lease; `_starting` already has an entry for it."""
        try:
            child = lease.start()
        except BaseException:
            with self.changed:
                self._starting.remove(key)
                lease.starting -= 1
                self.changed.notify_all()
            raise
        with self.changed:
            self._starting.remove(key)
            lease.starting -= 1
            self._alive.add(child)
            lease.held.add(child)
            stopped = lease.stopped
            self.changed.notify_all()
        if stopped:  # meanwhile, by a thread that did not know about this child
            self.drop(lease, child)
            raise WorkerError(STOPPED)
        return child


def _has_room(lease: Lease) -> bool:
    return len(lease.held) + lease.starting < lease.jobs


_everywhere: weakref.WeakSet[Children] = weakref.WeakSet()


def _disown_all() -> None:
    with contextlib.suppress(Exception):
        for children in list(_everywhere):
            children.disown()


os.register_at_fork(after_in_child=_disown_all)
