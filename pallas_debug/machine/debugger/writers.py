"""Writers of an element, found by replay: the last write, then back through copies to the first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from pallas_debug.machine.copies import DmaCopy
from pallas_debug.machine.debugger.driver import MemoryWrite
from pallas_debug.machine.memory import MemoryBuffer, MemoryRegion
from pallas_debug.machine.order.history import selects
from pallas_debug.stepping.track import ElementWriter

if TYPE_CHECKING:
    from pallas_debug.machine.debugger.live import LiveRun

MAX_STEPS = 32
"""Maximum number of copies to follow."""

_HOW = {"store": "stored", "copy": "copied by a DMA", "fetch": "fetched", "count": "counted"}

Element = tuple[int, ...]


def covers(write: MemoryWrite, element: Element) -> bool:
    """Return whether a write includes an element of its buffer."""
    if write.how == "new" or write.how == "count":
        return True
    if write.region is not None and write.mask is not None and write.region.index is not None:
        wanted = np.ravel_multi_index(element, write.buffer.content.shape)
        mask = np.broadcast_to(write.mask, write.region.shape).reshape(-1)
        return bool((mask & (_flat(write.region) == wanted)).any())
    if write.region is not None:
        return any(selects(index, element) for index in write.region.ranges())
    assert write.window is not None
    outer, inner = write.window.bounds(write.block)
    index = outer if write.how == "write-back" else inner
    return selects(index, element)


def written_by(
    run: LiveRun, buffer: MemoryBuffer, element: Element, name: str
) -> Iterator[ElementWriter]:
    """Yield the last writer of an element of a buffer, then the writers of the data copied there.

    The run is left at the last of these writes; the caller must restore its position.
    """
    for _ in range(MAX_STEPS):

        def wrote(write: MemoryWrite, buffer: Any = buffer, element: Any = element) -> bool:
            return write.buffer is buffer and covers(write, element)

        text = f"{name}[{', '.join(map(str, element))}]" if element else name
        value = _value(buffer, element)
        here = run.driver.tick
        tick = run.last_write(wrote)
        if tick is None:
            how = "given" if buffer.kind in ("input", "prefetch") else "never"
            yield ElementWriter(element=text, how=how, place=None, value=value)
            return
        assert tick < here
        run.go_to(tick)
        place = run.place
        run.advance()
        write = [w for w in run.events.writes if wrote(w)][-1]
        if write.how == "fetch":
            place = run.place  # the grid point has begun
        run.go_to(tick)
        if write.how == "new":
            yield ElementWriter(element=text, how="never", place=place, value=value)
            return
        how = _HOW.get(write.how, "written back")
        yield ElementWriter(element=text, how=how, place=place, value=value)
        if write.how in ("store", "count"):
            return
        before = _source(write, element)
        if before is None:
            return
        buffer, element = before
        name = buffer.name


def _source(write: MemoryWrite, element: Element) -> tuple[MemoryBuffer, Element] | None:
    """Return the source of a copied element."""
    if write.copy is not None:
        return _of_copy(write.copy, element)
    window = write.window
    assert window is not None
    outer, inner = window.bounds(write.block)
    if write.how == "fetch":
        kept = iter(zip(inner, element, strict=True))
        found = []
        for part, squeezed in zip(outer, window.spec.squeezed, strict=True):
            offset = 0
            if not squeezed:
                inside, n = next(kept)
                offset = n - inside.start
            found.append(part.start + offset)
        return window.array, tuple(found)
    parts = [
        (part, n)
        for part, n, squeezed in zip(outer, element, window.spec.squeezed, strict=True)
        if not squeezed
    ]
    return window.current, tuple(
        inside.start + n - part.start for (part, n), inside in zip(parts, inner, strict=True)
    )


def _of_copy(copy: DmaCopy, element: Element) -> tuple[MemoryBuffer, Element] | None:
    if copy.adds or copy.source.index is None or copy.destination.index is None:
        return None
    order = _flat(copy.destination)
    wanted = np.ravel_multi_index(element, copy.destination.buffer.content.shape)
    (found,) = np.nonzero(order == wanted)
    if not found.size:
        return None
    source = copy.source.buffer
    flat = int(_flat(copy.source)[found[0]])
    return source, tuple(int(i) for i in np.unravel_index(flat, source.content.shape))


def _flat(region: MemoryRegion) -> np.ndarray[Any, Any]:
    """Flat positions of a region's elements in its buffer, in region order."""
    content = region.buffer.content
    positions = np.arange(content.size).reshape(content.shape)
    return np.asarray(positions[region.index]).reshape(-1)


def _value(buffer: MemoryBuffer, element: Element) -> str:
    value = buffer.content[element]
    return f"{float(value):.6g}" if value.dtype.kind not in "biu" else str(value)
