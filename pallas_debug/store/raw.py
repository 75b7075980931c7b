"""Directories of raw Mosaic dumps, as libtpu writes them with `--xla_mosaic_dump_to=DIR`.

A file is `<nanoseconds>-<4 digits>-mosaic-dump-<kernel>-<pass>.txt`. All passes of one compile
share the nanoseconds, but for `post-deserialization` (number 0000), which is written several
times beforehand under nanoseconds of its own. Up to libtpu 0.0.42 the kernel is always
`anonymous`; its name then stands in the text. The pass that failed ends in `-failed`; a file in
MLIR bytecode ends in `.mlirbc`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from pallas_debug.model import Pass

_FILE = re.compile(
    r"(?P<stamp>\d{6,})-(?P<number>\d{4})-mosaic-dump-(?P<kernel>.+?)"
    r"-(?P<name>original|post-.+?)(?P<failed>-failed)?\.txt"
)
_BYTECODE = re.compile(r"\d{6,}-.*mosaic-dump-.*\.mlirbc")
_FUNCTION = re.compile(rb"func\.func @(?:\"([^\"]+)\"|([\w.$-]+))")
_HEAD = 1 << 16

ANONYMOUS = "anonymous"


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


def parse(path: Path) -> RawPass | None:
    """What the file's name says, or None for a file that is no pass in text."""
    match = _FILE.fullmatch(path.name)
    if match is None:
        return None
    return RawPass(
        path=path,
        stamp=int(match["stamp"]),
        number=int(match["number"]),
        kernel=match["kernel"],
        name=match["name"].removeprefix("post-"),
        failed=match["failed"] is not None,
    )


def is_raw(path: Path) -> bool:
    """Whether a file's name is one that libtpu gives to a Mosaic dump, in text or bytecode."""
    return _FILE.fullmatch(path.name) is not None or _BYTECODE.fullmatch(path.name) is not None


def compiles(files: Iterable[Path]) -> list[RawCompile]:
    """The compiles that `files` hold, oldest first; names that are no dumps are passed over."""
    by_stamp: dict[tuple[int, str], list[RawPass]] = {}
    for raw in map(parse, files):
        if raw is not None:
            by_stamp.setdefault((raw.stamp, raw.kernel), []).append(raw)
    found: list[RawCompile] = []
    early: dict[str, RawPass] = {}
    for (stamp, kernel), group in sorted(by_stamp.items(), key=lambda item: item[0]):
        passes = sorted(group, key=lambda p: p.number)
        if len(passes) == 1 and passes[0].number == 0 and not passes[0].failed:
            early[kernel] = passes[0]  # the compile that it belongs to comes next, or never
            continue
        first = early.pop(kernel, None)
        if first is not None and passes[0].number != 0:
            passes.insert(0, first)
        found.append(RawCompile(kernel=_name(kernel, passes), stamp=stamp, passes=tuple(passes)))
    for kernel, alone in early.items():  # the compiler died before its first pass
        found.append(RawCompile(kernel=_name(kernel, [alone]), stamp=alone.stamp, passes=(alone,)))
    return sorted(found, key=lambda c: c.stamp)


def describe(passes: Sequence[RawPass], *, keep_unchanged: bool) -> list[Pass]:
    """The passes of one compile as the manifest lists them.

    Args:
      passes: in their order.
      keep_unchanged: whether a pass that changed nothing names its file all the same.
    """
    times = [None, *((b - a) / 1e9 for a, b in pairwise(p.path.stat().st_mtime_ns for p in passes))]
    described: list[Pass] = []
    before: str | None = None
    for raw, seconds in zip(passes, times, strict=True):
        text = raw.path.read_bytes()
        digest = hashlib.sha256(text).hexdigest()
        changed = digest != before or raw.failed
        before = digest
        described.append(
            Pass(
                number=raw.number,
                name=raw.name,
                size=len(text),
                sha256=digest,
                seconds=None if seconds is None else max(0.0, round(seconds, 6)),
                changed=changed,
                failed=raw.failed,
                file=raw.path.name if changed or keep_unchanged else None,
            )
        )
    return described


def _name(kernel: str, passes: Sequence[RawPass]) -> str:
    if kernel != ANONYMOUS:
        return kernel
    with passes[0].path.open("rb") as file:
        match = _FUNCTION.search(file.read(_HEAD))
    return (match[1] or match[2]).decode(errors="replace") if match else kernel
