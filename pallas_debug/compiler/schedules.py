"""Selection of the files of a kernel's operation among the hundreds that libtpu writes.

A file is `<nanoseconds>-<operation>-<number>-<label>.txt`. Besides the kernel's custom call there
are operations of libtpu's own (`TLP`, the program around it; `<late-finalization>`), copies and
fusions. Files about the whole module belong to `TLP`. For a kernel on the SparseCore there are only
bundles: `<operation>_<microseconds>_bundles.txt`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pallas_debug.compiler.stages import Stages
from pallas_debug.ir.hlo import kernel_calls
from pallas_debug.store import layout

_LATE = 0.5
"""Maximum seconds to wait for files that libtpu writes in the background, usually milliseconds."""

_FILE = re.compile(r"(?P<stamp>\d{6,})-(?P<operation>.+)-(?P<number>\d{2,})-(?P<label>[^/]+)\.\w+")
_HLO = re.compile(r"(?P<stamp>\d{6,})-.+-hlo\.txt")
_SPARSE = re.compile(r"(?!sc-).+_(?P<stamp>\d{13,})_bundles\.txt")
"""Bundles of a SparseCore; those that start with `sc-` set it up."""

_PROGRAM = "TLP"
"""Operation under which libtpu writes files about the whole program."""

_OF_KERNEL: Mapping[str, str] = {
    "final_bundles": layout.BUNDLES,
    "final_hlo-static-per-bundle-utilization": layout.UTILIZATION,
    "pre-delay_hlo-static-per-bundle-utilization": layout.DELAYS,
    "schedule-analysis_final_bundles": layout.ANALYSIS,
    "critical-path": layout.CRITICAL_PATH,
    "register-pressure": layout.REGISTERS,
}
"""File of the dump for each label of the kernel's operation."""

_ESTIMATE = "_static_llo_profile.textproto"
_VMEM = "vmem_report"

Files = dict[str, bytes | Path]


@dataclass(frozen=True, kw_only=True)
class DumpedFile:
    """A file that libtpu wrote about one operation."""

    path: Path
    stamp: int
    operation: str
    number: int
    label: str


def of_kernel(paths: Iterable[Path], stages: Stages, *, since: int = 0) -> Files:
    """Return the files to keep, by their path below the target's folder.

    Args:
      since: time in nanoseconds; older files belong to an earlier compilation, which libtpu may
        finish writing late.
    """
    paths = list(paths)
    found = [file for file in map(_dumped, paths) if file is not None and file.stamp >= since]
    hlo = max((p for p in paths if _stamp(_HLO, p) >= since), key=lambda p: p.name, default=None)
    operation = _operation(found, None if hlo is None else hlo.read_text(errors="replace"))
    own = [file for file in found if file.operation == operation]
    latest = max((file.stamp for file in own), default=0)
    own = sorted((file for file in own if file.stamp == latest), key=lambda file: file.number)
    kept: Files = {}
    if stages.bundles:
        kept |= {_OF_KERNEL[file.label]: file.path for file in own if file.label in _OF_KERNEL}
        for file in found:
            if (file.operation, file.label) == (_PROGRAM, _VMEM):
                kept[layout.VMEM] = file.path
        if hlo is not None:
            kept[layout.HLO] = hlo
        sparse = (p for p in paths if _stamp(_SPARSE, p) >= since // 1000)
        bundles = max(sparse, key=_size, default=None)
        if bundles is not None:
            kept[layout.SPARSECORE] = bundles
    if stages.estimate:
        estimates = (p for p in paths if _is_estimate(p.name, operation))
        estimate = min(estimates, key=lambda p: len(p.name), default=None)
        if estimate is not None:
            kept[layout.ESTIMATE] = estimate
    for file in own:
        is_kept = stages.bundles and file.label in _OF_KERNEL
        if stages.takes_pass(file.label) and not is_kept:
            kept[layout.llo_file(file.number, file.label)] = file.path
    return kept


def _is_estimate(name: str, operation: str | None) -> bool:
    """Return whether a file is the estimate of an operation.

    It is `<operation>_static_…`; from libtpu 0.0.50 on, `<operation>_<device kind>_static_…`, and
    for operations of XLA's own the name of an operand may come before the kind.
    """
    rest = name.removeprefix(operation) if operation else name
    return rest != name and name.endswith(_ESTIMATE) and rest[0] in "._"


def wait_for_files(folder: Path, *, since: int) -> None:
    """Wait until the files of each operation are numbered without gaps.

    libtpu numbers the critical path with the passes before it, and may write it after the reply.
    """
    end = time.monotonic() + _LATE
    while not _is_complete(folder, since) and time.monotonic() < end:
        time.sleep(0.005)


def _is_complete(folder: Path, since: int) -> bool:
    numbers: dict[tuple[int, str], set[int]] = {}
    for file in filter(None, map(_dumped, folder.iterdir())):
        if file.stamp >= since:
            numbers.setdefault((file.stamp, file.operation), set()).add(file.number)
    return all(max(found) < len(found) for found in numbers.values())


def _operation(found: list[DumpedFile], hlo: str | None) -> str | None:
    """Return the name of the kernel's operation.

    Without the HLO, it is the largest operation that is not libtpu's own.
    """
    named = kernel_calls(hlo or "")
    others = [f for f in found if f.operation != _PROGRAM and not f.operation.startswith("<")]
    candidates = [f for f in others if f.operation in named] if named else others
    largest = max(candidates, key=lambda file: _size(file.path), default=None)
    return None if largest is None else largest.operation


def _dumped(path: Path) -> DumpedFile | None:
    match = _FILE.fullmatch(path.name)
    if match is None:
        return None
    return DumpedFile(
        path=path,
        stamp=int(match["stamp"]),
        operation=match["operation"],
        number=int(match["number"]),
        label=match["label"],
    )


def _stamp(pattern: re.Pattern[str], path: Path) -> int:
    match = pattern.fullmatch(path.name)
    return -1 if match is None else int(match["stamp"])


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
