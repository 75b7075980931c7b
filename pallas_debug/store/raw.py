"""Directories of raw Mosaic dumps, as libtpu writes them with `--xla_mosaic_dump_to=DIR`.

A file is `<nanoseconds>-<4 digits>-mosaic-dump-<kernel>-<pass>.txt`. All passes of one compile
share the nanoseconds, but for `post-deserialization` (number 0000), which is written several
times beforehand under nanoseconds of its own. Up to libtpu 0.0.42 the kernel is always
`anonymous`; its name then stands in the text. The pass that failed ends in `-failed`; a file in
MLIR bytecode ends in `.mlirbc`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

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
    stamp: int
    number: int
    kernel: str
    name: str
    failed: bool


@dataclass(frozen=True, kw_only=True)
class RawCompile:
    """The files of one compile of one kernel, in the order of the passes."""

    kernel: str
    stamp: int
    passes: tuple[RawPass, ...]

    @property
    def whole(self) -> bool:
        """Whether the compiler came to its end, in success or failure."""
        return any(p.failed or p.name == LAST for p in self.passes)


def compiles(files: Iterable[Path]) -> list[RawCompile]:
    """The compiles that `files` hold, oldest first; names that are no dumps are passed over."""
    by_compile: dict[tuple[int, str], list[RawPass]] = {}
    for raw in _parse(files):
        by_compile.setdefault((raw.stamp, raw.kernel), []).append(raw)
    found: list[RawCompile] = []
    early: dict[str, RawPass] = {}
    for (stamp, written), group in sorted(by_compile.items(), key=lambda item: item[0]):
        passes = sorted(group, key=lambda p: p.number)
        kernel = _name(written, passes[0].path)
        if len(passes) == 1 and passes[0].number == 0 and not passes[0].failed:
            early[kernel] = passes[0]  # the compile that it belongs to comes next, or never
            continue
        first = early.pop(kernel, None)
        if first is not None and passes[0].number != 0:
            passes.insert(0, first)
        found.append(RawCompile(kernel=kernel, stamp=stamp, passes=tuple(passes)))
    for kernel, alone in early.items():  # the compiler died before its first pass
        found.append(RawCompile(kernel=kernel, stamp=alone.stamp, passes=(alone,)))
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


def _parse(files: Iterable[Path]) -> list[RawPass]:
    """What the names of the files say; one that is no pass in text is passed over."""
    by_stamp: dict[int, list[tuple[Path, re.Match[str]]]] = {}
    for path in files:
        match = _FILE.fullmatch(path.name)
        if match is not None:
            by_stamp.setdefault(int(match["stamp"]), []).append((path, match))
    return [
        RawPass(
            path=path,
            stamp=stamp,
            number=int(match["number"]),
            kernel=kernel,
            name=match["words"].removeprefix(f"{kernel}-").removeprefix("post-"),
            failed=match["failed"] is not None,
        )
        for stamp, group in by_stamp.items()
        for (path, match), kernel in zip(
            group, _kernels([match["words"] for _, match in group]), strict=True
        )
    ]


def _kernels(words: Sequence[str]) -> list[str]:
    """The kernel in each `<kernel>-<pass>` of the files that share one stamp.

    Either part may hold `-post-` or `-original`. Two passes have names that no other pass ends
    in, and tell the kernel's; without them it is what could be the kernel's in every file.
    """
    told = {w.removesuffix(end) for w in words for end in _TELLING if w.endswith(end)}
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


def _name(kernel: str, path: Path) -> str:
    if kernel != ANONYMOUS:
        return kernel
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD).decode(errors="replace")
    except OSError:  # whoever reads the pass is told
        return kernel
    match = _FUNCTION.search(head)
    return unescape(match[1] or match[2]) if match else kernel
