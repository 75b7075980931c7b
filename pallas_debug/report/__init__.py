"""HTML report on a dump directory, in a single file; its parts are also used in notebooks.

Imports no jax."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pallas_debug.store import DumpReader, StoredKernel


def write_report(
    reader: DumpReader,
    kernels: Iterable[StoredKernel],
    path: Path,
    *,
    title: str,
    targets: Sequence[str] = (),
    before: tuple[DumpReader, Sequence[StoredKernel]] | None = None,
) -> int:
    """Write the page about some kernels of a dump directory, and return its size in bytes.

    Args:
      targets: the only targets to show; all by default.
      before: another dump to compare them with, and its kernels.

    Raises:
      OSError: the file cannot be written.
    """
    from pallas_debug.report.collect import collect
    from pallas_debug.report.page import render_page
    from pallas_debug.store.disk import write_whole

    page = render_page(collect(reader, kernels, targets, before), title)
    data = page.encode(errors="backslashreplace")
    write_whole(path, data)
    return len(data)
