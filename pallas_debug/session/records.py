"""Run records of a session, and the judgements that it was asked for and did not make."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pallas_debug.model import Finding, Gap, Kernel, PrintRecord, RunRecord
from pallas_debug.store.base import DumpStore

if TYPE_CHECKING:
    from pallas_debug.session.session import Session


def gaps_of(
    session: Session,
    kernels: Iterable[Kernel] | None = None,
    *,
    since: int = 0,
    has_ended: bool = True,
) -> Iterator[Gap]:
    """Yield what was not captured, not checked, or not compiled.

    Args:
      kernels: only these; None for all.
      since: number of kernels that could not be captured before, which are left out.
      has_ended: whether compilations that have no result yet are gaps.
    """
    used = list(session.kernels if kernels is None else kernels)
    names = {kernel.name for kernel in used}
    for missed in session.uncaptured[since:]:
        yield Gap(kernel=missed.name, engine="capture", reason=str(missed.problem))
    yield from (gap for gap in session.unchecked if kernels is None or gap.kernel in names)
    yield from session.queue.uncompiled(used, has_ended=has_ended)


def record(
    session: Session,
    store: DumpStore,
    name: str,
    *,
    kernels: Iterable[Kernel],
    prints: Iterable[PrintRecord],
    findings: Iterable[Finding],
    gaps: Iterable[Gap],
) -> Path:
    """Write the record of a test or script, and return its file."""
    return store.put_run(
        RunRecord(
            run=session.run_id,
            name=name,
            kernels=tuple(store.folder(kernel).name for kernel in kernels),
            prints=tuple(prints),
            findings=tuple(findings),
            gaps=tuple(dict.fromkeys(gaps)),
        )
    )
