"""Directories of raw Mosaic dumps, as libtpu writes them with `--xla_mosaic_dump_to=DIR`.

A file is `<nanoseconds>-<4 digits>-mosaic-dump-<kernel>-<pass>.txt`. All passes of one compile
share the nanoseconds, but for `post-deserialization` (number 0000), which is written several
times beforehand under nanoseconds of its own. Up to libtpu 0.0.42 the kernel is always
`anonymous`; its name then stands in the text. The pass that failed ends in `-failed`; a file in
MLIR bytecode ends in `.mlirbc`.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pallas_debug.ir.locations import unescape
from pallas_debug.model import Pass

_FILE = re.compile(
    r"(?P<stamp>\d{6,})-(?P<number>\d{4,})-mosaic-dump-(?P<words>.+-(?:original|post-.+?))"
    r"(?P<failed>-failed)?\.txt",
    re.DOTALL,
)
_FUNCTION = re.compile(r"func\.func @(?:\"((?:[^\"\\]|\\.)+)\"|([\w.$-]+))")
_HEAD = 1 << 16

ANONYMOUS = "anonymous"

LAST = "finalize-llo"
"""The pass that a compile ends with."""


@dataclass(frozen=True, kw_only=True)
class RawPass:
    """One file: a pass of one compile."""

    path: Path
    number: int
    name: str
    failed: bool


class RawFile(NamedTuple):
    """A file by its name. A tuple, as there may be hundreds of thousands.

    Attributes:
      words: the kernel and the pass.
      written: the kernel as it stands in the name.
    """

    folder: Path
    name: str
    number: int
    words: str
    failed: bool
    written: str

    @property
    def path(self) -> Path:
        return self.folder / self.name

    @property
    def is_early(self) -> bool:
        """Whether it was written before the compile that it belongs to."""
        return self.number == 0 and not self.failed

    @property
    def is_last(self) -> bool:
        return self.failed or self.words == f"{self.written}-post-{LAST}"


@dataclass(frozen=True, kw_only=True)
class RawCompile:
    """The files of one compile of one kernel, in the order of the passes."""

    kernel: str
    stamp: int
    files: tuple[RawFile, ...]

    @functools.cached_property
    def passes(self) -> tuple[RawPass, ...]:
        return tuple(
            RawPass(
                path=file.path,
                number=file.number,
                name=file.words.removeprefix(f"{file.written}-").removeprefix("post-"),
                failed=file.failed,
            )
            for file in self.files
        )

    @property
    def whole(self) -> bool:
        """Whether the compiler came to its end, in success or failure."""
        return any(file.is_last for file in self.files)


def compiles(files: Iterable[Path]) -> list[RawCompile]:
    """The compiles that `files` hold, oldest first; names that are no dumps are passed over."""
    return _compiles((file.parent, file.name) for file in files)


def compiles_in(folder: Path, names: Iterable[str]) -> list[RawCompile]:
    """The same of the files of one folder, by their names."""
    return _compiles((folder, name) for name in names)


def _compiles(files: Iterable[tuple[Path, str]]) -> list[RawCompile]:
    found: list[RawCompile] = []
    early: dict[str, tuple[int, RawFile]] = {}
    for (stamp, written), group in sorted(_parse(files).items(), key=lambda item: item[0]):
        group.sort(key=lambda file: file.number)
        kernel = _name(written, group[0])
        if len(group) == 1 and group[0].is_early:
            early[kernel] = stamp, group[0]  # the compile that it belongs to comes next, or never
            continue
        _, first = early.pop(kernel, (0, None))
        if first is not None and group[0].number != 0:
            group.insert(0, first)
        found.append(RawCompile(kernel=kernel, stamp=stamp, files=tuple(group)))
    for kernel, (stamp, alone) in early.items():  # the compiler died before its first pass
        found.append(RawCompile(kernel=kernel, stamp=stamp, files=(alone,)))
    return sorted(found, key=lambda c: c.stamp)


def outline(passes: Sequence[RawPass]) -> list[Pass]:
    """The passes of one compile by the sizes and times of their files.

    A text is read only where it is as long as the one before. No pass has a digest; each names
    its file.

    Raises:
      OSError: a file has gone.
    """
    outlined: list[Pass] = []
    before: RawPass | None = None
    began: os.stat_result | None = None
    for raw in passes:
        this = raw.path.stat()
        seconds, same = None, False
        if before is not None and began is not None:
            seconds = max(0.0, round((this.st_mtime_ns - began.st_mtime_ns) / 1e9, 6))
            same = this.st_size == began.st_size and _same(before.path, raw.path)
        outlined.append(
            Pass(
                number=raw.number,
                name=raw.name,
                size=this.st_size,
                sha256="",
                seconds=seconds,
                changed=raw.failed or not same,
                failed=raw.failed,
                file=raw.path.name,
            )
        )
        before, began = raw, this
    return outlined


def _same(a: Path, b: Path) -> bool:
    with a.open("rb") as one, b.open("rb") as other:
        while chunk := one.read(_HEAD):
            if chunk != other.read(_HEAD):
                return False
    return True


def describe(passes: Sequence[RawPass], *, keep_unchanged: bool = True) -> list[Pass]:
    """The passes of one compile as the manifest lists them.

    Args:
      passes: in their order.
      keep_unchanged: whether a pass that changed nothing names its file all the same.
    """
    described: list[Pass] = []
    before: str | None = None
    began: int | None = None
    for raw in passes:
        text = raw.path.read_bytes()
        digest = hashlib.sha256(text).hexdigest()
        changed = digest != before or raw.failed
        ended = raw.path.stat().st_mtime_ns
        seconds = None if began is None else max(0.0, round((ended - began) / 1e9, 6))
        before, began = digest, ended
        described.append(
            Pass(
                number=raw.number,
                name=raw.name,
                size=len(text),
                sha256=digest,
                seconds=seconds,
                changed=changed,
                failed=raw.failed,
                file=raw.path.name if changed or keep_unchanged else None,
            )
        )
    return described


def _parse(files: Iterable[tuple[Path, str]]) -> dict[tuple[int, str], list[RawFile]]:
    """What the names of the files say, by compile; one that is no pass in text is passed over."""
    by_stamp: dict[str, list[tuple[Path, str, str, str, bool]]] = {}
    for folder, name in files:
        match = _FILE.fullmatch(name)
        if match is not None:
            stamp, number, words, failed = match.groups()
            parts = folder, name, number, words, failed is not None
            by_stamp.setdefault(stamp, []).append(parts)
    by_compile: dict[tuple[int, str], list[RawFile]] = {}
    for stamp, group in by_stamp.items():
        kernels = _kernels([words for _, _, _, words, _ in group])
        for (folder, name, number, words, failed), kernel in zip(group, kernels, strict=True):
            file = RawFile(folder, name, int(number), words, failed, kernel)
            by_compile.setdefault((int(stamp), kernel), []).append(file)
    return by_compile


def _kernels(words: Sequence[str]) -> list[str]:
    """The kernel in each `<kernel>-<pass>` of the files that share one stamp.

    Either part may hold `-post-` or `-original`. Two passes have names that no other pass ends
    in, and tell the kernel's; without them it is what could be the kernel's in every file.
    """
    told = {w.removesuffix(end) for w in words for end in _TELLING if w.endswith(end)}
    if len(told) == 1:  # nearly always, and then quickly told
        (kernel,) = told
        if all(w.startswith(f"{kernel}-") for w in words):
            return [kernel] * len(words)
    untold = [_candidates(w) for w in words if not any(w.startswith(f"{k}-") for k in told)]
    shared = set[str]().union(*untold).intersection(*untold)
    kernels = []
    for w in words:
        own = [k for k in told if w.startswith(f"{k}-")] or list(shared) or list(_candidates(w))
        # `k-post-post-canon-optimization` is a pass of `k`, not of `k-post`.
        kernels.append(max(own, key=lambda k: (k in told or not k.endswith("-post"), len(k))))
    return kernels


_TELLING = ("-original", "-post-deserialization")


def _candidates(words: str) -> set[str]:
    return {words[: m.start()] for m in re.finditer(r"(?<=.)(?=-post-.|-original$)", words, re.S)}


def _name(kernel: str, file: RawFile) -> str:
    if kernel != ANONYMOUS:
        return kernel
    try:
        with file.path.open("rb") as opened:
            head = opened.read(_HEAD).decode(errors="replace")
    except OSError:  # whoever reads the pass is told
        return kernel
    match = _FUNCTION.search(head)
    return unescape(match[1] or match[2]) if match else kernel
