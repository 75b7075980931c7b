"""Directories of raw Mosaic dumps, as libtpu writes them with `--xla_mosaic_dump_to=DIR`.

A file is `<nanoseconds>-<4 digits>-mosaic-dump-<kernel>-<pass>.txt`. All passes of one compile
share the nanoseconds, except `post-deserialization` (number 0000), which is written several times
beforehand under other nanoseconds. Up to libtpu 0.0.42 the kernel is always `anonymous`; its name
is then in the text. The name of a failed pass ends in `-failed`; that of a file in MLIR bytecode in
`.mlirbc`.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pallas_debug.errors import DumpFormatError
from pallas_debug.ir.mosaic import function_name
from pallas_debug.model import Pass
from pallas_debug.store import files

_FILE = re.compile(
    r"(?P<stamp>\d{6,})-(?P<number>\d{4,})-mosaic-dump-(?P<words>.+-(?:original|post-.+?))"
    r"(?P<failed>-failed)?\.txt",
    re.DOTALL,
)
_HEAD = 1 << 16

ANONYMOUS = "anonymous"

LAST = "finalize-llo"
"""Last pass of a complete compile."""


@dataclass(frozen=True, kw_only=True)
class RawPass:
    """One file: a pass of one compile."""

    path: Path
    number: int
    name: str
    failed: bool


@dataclass(frozen=True, kw_only=True)
class RawCompile:
    """The files of one compile of one kernel.

    Attributes:
      written: the kernel's name as it appears in the file names.
      folder: folder that contains the files.
      files: names of the files, and of others that begin like them.
      early: pass of this compile that libtpu wrote beforehand.
    """

    kernel: str
    stamp: int
    written: str
    folder: Path
    files: Sequence[str]
    early: RawPass | None = None

    @functools.cached_property
    def passes(self) -> tuple[RawPass, ...]:
        """The passes in order, parsed lazily as there may be many compiles."""
        found = [_pass(self.folder, name, self.written) for name in self.files]
        passes = sorted(filter(None, found), key=lambda p: p.number)
        if self.early is not None and passes[0].number != 0:
            passes.insert(0, self.early)
        return tuple(passes)

    @property
    def whole(self) -> bool:
        """True if the compile ran to completion, in success or failure."""
        return any(p.failed or p.name == LAST for p in self.passes)


def compiles(paths: Iterable[Path]) -> list[RawCompile]:
    """Return the compiles among `paths`, files of one folder; see `compiles_in`."""
    listed = list(paths)
    return compiles_in(listed[0].parent, (path.name for path in listed)) if listed else []


def compiles_in(folder: Path, names: Iterable[str]) -> list[RawCompile]:
    """Return the compiles among the files of a folder, possibly 100,000s of them, oldest first.

    Other names are skipped.
    """
    found: list[RawCompile] = []
    early: dict[str, RawCompile] = {}
    for stamp, group in sorted(_by_stamp(names)):
        written = _kernel(group)
        if written is None:
            continue
        kernel = _name(written, folder, group[0])
        this = RawCompile(kernel=kernel, stamp=stamp, written=written, folder=folder, files=group)
        if len(group) == 1 and this.passes[0].number == 0 and not this.passes[0].failed:
            early[kernel] = this  # the compile that it belongs to comes next, or never
            continue
        if first := early.pop(kernel, None):
            this = dataclasses.replace(this, early=first.passes[0])
        found.append(this)
    found += early.values()  # the compiler died before its first pass
    return sorted(found, key=lambda c: c.stamp)


def named_compiles(folder: Path, names: Iterable[str]) -> dict[str, RawCompile]:
    """Return the compiles in a folder by kernel name, suffixed `#2`, `#3`, … for repeats."""
    found: dict[str, RawCompile] = {}
    counts: dict[str, int] = {}
    for this in compiles_in(folder, names):
        counts[this.kernel] = count = counts.get(this.kernel, 0) + 1
        found[this.kernel if count == 1 else f"{this.kernel}#{count}"] = this
    return found


def outline(passes: Sequence[RawPass]) -> list[Pass]:
    """Describe the passes of one compile using only the sizes and times of their files.

    A text is read only if it has the same length as the previous one. Each pass refers to its file.

    Raises:
      OSError, DumpFormatError: a file has gone, or is refused.
    """
    outlined: list[Pass] = []
    before: RawPass | None = None
    began: os.stat_result | None = None
    for raw in passes:
        this = raw.path.stat()
        seconds, same = None, False
        if before is not None and began is not None:
            seconds = max(0.0, round((this.st_mtime_ns - began.st_mtime_ns) / 1e9, 6))
            same = this.st_size == began.st_size and same_text(before.path, raw.path)
        outlined.append(
            Pass(
                number=raw.number,
                name=raw.name,
                size=this.st_size,
                seconds=seconds,
                changed=raw.failed or not same,
                failed=raw.failed,
                file=raw.path.name,
            )
        )
        before, began = raw, this
    return outlined


def same_text(a: Path, b: Path) -> bool:
    """Return whether two files have the same content.

    Raises:
      OSError, DumpFormatError: one has gone, or is refused.
    """
    one, other = files.pieces(a, a.parent), files.pieces(b, b.parent)
    return all(p == q for p, q in itertools.zip_longest(one, other))


def _pass(folder: Path, name: str, kernel: str) -> RawPass | None:
    """Parse the name of a pass's file; None if it is not a pass in text form."""
    match = _FILE.fullmatch(name)
    if match is None:
        return None
    return RawPass(
        path=folder / name,
        number=int(match["number"]),
        name=match["words"].removeprefix(f"{kernel}-").removeprefix("post-"),
        failed=match["failed"] is not None,
    )


def _by_stamp(names: Iterable[str]) -> Iterator[tuple[int, Sequence[str]]]:
    """Yield the files that begin with the same nanoseconds, in pass order."""
    listed = sorted(names)
    start = 0
    while start < len(listed):
        stamp = listed[start].partition("-")[0]
        # The character after `-` ends the group. Most names are never looked at.
        stop = max(bisect.bisect_left(listed, f"{stamp}.", start), start + 1)
        if stamp.isdecimal():
            yield int(stamp), listed[start:stop]
        start = stop


def _kernel(names: Sequence[str]) -> str | None:
    """Return the kernel's name in the files that share one stamp; None if none of them is a pass.

    A kernel's name may contain `-post-`, and so may that of a pass. The first two passes have
    suffixes that no other pass has, and thereby give the kernel's name.
    """
    found = None
    for match in itertools.islice(filter(None, map(_FILE.fullmatch, names)), 2):
        words = str(match["words"])
        for end in ("-original", "-post-deserialization"):
            if words.endswith(end):
                return words.removesuffix(end)
        found = found or words.partition("-post-")[0]
    return found


def _name(kernel: str, folder: Path, file: str) -> str:
    if kernel != ANONYMOUS:
        return kernel
    try:
        head = next(files.pieces(folder / file, folder), b"")[:_HEAD].decode(errors="replace")
    except (OSError, DumpFormatError):  # reported when the pass itself is read
        return kernel
    return function_name(head) or kernel
