"""Files of the schedule that are tables or HTML, drawn as lines with bars."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pallas_debug import quantities

if TYPE_CHECKING:
    from pallas_debug.profile.memory import MemoryMap
    from pallas_debug.profile.units import UnitTable

_BAR = 14
"""Width in cells of the bar of a share."""

_COLUMNS = 40
"""Maximum number of columns of a course through the bundles."""

_LEVELS = " ▁▂▃▄▅▆▇█"
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def bar(share: float, width: int = _BAR) -> str:
    """Return a bar of `width` cells for a share; any share above 0 is visible."""
    eighths = min(-int(-share * width * 8 // 1), width * 8)
    whole, rest = divmod(eighths, 8)
    return f"{'█' * whole}{_EIGHTHS[rest] if rest else ''}".ljust(width)


def unit_lines(table: UnitTable) -> Iterator[str]:
    """Yield for each unit the share of it that is used, and its course through the bundles."""
    from pallas_debug.profile.units import MEANINGS

    count = len(table.rows)
    at_once = max(-(-count // _COLUMNS), 1)
    yield f"{count:,} bundles: the share of each unit that is used, and where"
    yield ""
    for name, capacity in zip(table.names, table.capacity, strict=True):
        used = table.column(name) or ()
        room = capacity * count
        share = sum(used) / room if room else 0.0
        pieces = (used[at : at + at_once] for at in range(0, count, at_once))
        parts = [sum(piece) / (capacity * len(piece) or 1) for piece in pieces]
        course = "".join(_LEVELS[min(-int(-part * 8 // 1), 8)] for part in parts)
        percent = quantities.percent(share)
        meaning = MEANINGS.get(name, "")
        yield f"{name:13}{bar(share)} {percent:>6}  ▕{course}▏ {meaning}".rstrip()
    yield ""
    yield f"{'':35}one column: {at_once:,} bundle{'s' * (at_once > 1)}"


def memory_lines(memory: MemoryMap) -> Iterator[str]:
    """Yield for each allocation its size, and its share of what the kernel may use."""
    limit, used = memory.limit.value or 0, memory.vmem.value
    if used is None:  # the page itself is shown
        return
    of = f" of {quantities.size_text(limit)} that the kernel may use" if limit else ""
    yield f"VMEM: {quantities.size_text(used)}{of}"
    if limit:
        yield f"{bar(used / limit, 2 * _BAR)} {quantities.percent(used / limit)}"
    uses = [use for use in memory.uses if use.size.value is not None]
    width = max((len(use.name) for use in uses), default=0)
    total = sum(use.size.value or 0 for use in uses if use.space == "vmem")
    yield ""
    for use in sorted(uses, key=lambda use: -(use.size.value or 0)):
        size = use.size.value or 0
        share = size / total if use.space == "vmem" and total else 0.0
        buffers = f"  {use.buffers} buffers" if use.buffers else ""
        padding = f"  {quantities.size_text(use.padding)} padding" if use.padding else ""
        percent = quantities.percent(share) if share else use.space
        yield (
            f"{use.name:{width}}  {quantities.size_text(size):>9}  {bar(share)} {percent:>5}"
            f"{buffers}{padding}"
        )
