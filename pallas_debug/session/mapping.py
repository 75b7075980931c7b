"""Recording of block maps, with the values of scalar prefetch where they are known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pallas_debug.analysis.block_map import block_map
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.errors import PallasDebugError
from pallas_debug.guards import guarded
from pallas_debug.store.base import DumpStore

if TYPE_CHECKING:
    import numpy as np

    Tables = Mapping[str, Sequence[Sequence[np.ndarray | None]]]

Report = Callable[[PallasDebugError], None]


def map_blocks(store: DumpStore, captured: Capture, report: Report) -> None:
    """Record which blocks a kernel touches, as far as its index maps read no scalar prefetch."""
    with guarded("capture", f"mapping the blocks of kernel `{captured.kernel.name}`", report):
        store.put_blocks(captured.kernel, block_map(captured))


def map_prefetched(
    store: DumpStore | None,
    captures: Iterable[Capture],
    tables: Callable[[], Tables],
    report: Report,
) -> None:
    """Record the blocks of kernels with scalar prefetch, with the values of the first call.

    Args:
      tables: computes the values, per call, by the kernel's digest.
    """
    kernels = [c for c in captures if c.kernel.of_kind("scalar_prefetch")]
    if store is None or not kernels:
        return
    with guarded("capture", "computing the scalar prefetch of kernels", report):
        found = tables()
        for captured in kernels:
            for values in found.get(captured.kernel.digest, ())[:1]:
                known = {i: table for i, table in enumerate(values) if table is not None}
                store.put_blocks(captured.kernel, block_map(captured, known))
