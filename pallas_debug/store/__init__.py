"""The dump directory: layout, writer, reader, locks, and libtpu's own raw dumps.

Floor 1: imports `model`, `errors` and `ir`, never jax, so that a dump copied from a TPU host can be
read on any machine. The format is documented in `docs/reference/dump-format.md`. The writer is
imported lazily, so that readers start without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pallas_debug.store.reader import DumpReader as DumpReader
from pallas_debug.store.reader import open_dumps as open_dumps
from pallas_debug.store.stored import StoredCompilation as StoredCompilation
from pallas_debug.store.stored import StoredKernel as StoredKernel
from pallas_debug.store.texts import StoredText as StoredText

if TYPE_CHECKING:
    from pallas_debug.store.writer import Store as Store


def __getattr__(name: str) -> Any:
    if name != "Store":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pallas_debug.store.writer import Store

    return Store
