"""Conversion of the dumps of a GPU back end to the stages and passes of a compilation.

MLIR prints all passes of a compilation to one file, each time with the text before a pass. It is
split, and a text is kept only if its pass changed something; compressed, as a text of Mosaic GPU
has a megabyte, most of it types and locations that repeat.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pallas_debug.compiler import triton_lines
from pallas_debug.compiler.compile import Files
from pallas_debug.model import Pass
from pallas_debug.store import layout

_DUMP = re.compile(
    r"^// -----// IR Dump Before (?P<class>\w+)(?:: (?P<name>[\w-]+))?[^\n]*\n", re.MULTILINE
)
_LEVEL = 3
"""Level of compression, at which it takes a tenth of a second for the largest kernel of jax."""

_LOWERED = {
    layout.TTIR: layout.TTIR,
    "constraint_system": layout.CONSTRAINTS,
    "resources": layout.RESOURCES,
}
"""Where texts from before the child are kept."""

_BEFORE, _AFTER = "before_layout_inference", "after_layout_inference"
_LOGS = _OF_MOSAIC, _OF_TRITON = ".mlir-passes.log", ".triton-to-llvm.txt"


@dataclass(frozen=True, kw_only=True)
class _Step:
    """A pass, and the text after it; None if it was not printed."""

    name: str
    text: str | None


def of_dumps(
    dumps: Iterable[Path], texts: Mapping[str, str], *, has_failed: bool
) -> tuple[list[Pass], Files]:
    """Return the passes of a compilation, and the files to keep.

    Args:
      dumps: files that the child left.
      texts: `Lowered.texts`.
      has_failed: whether the kernel has no executable.
    """
    named = {path.name: path for path in sorted(dumps)}
    assembled = (layout.PTX, layout.PTXAS, layout.SASS)
    files: Files = {name: named[name] for name in assembled if name in named}
    files |= {kept: _encoded(texts[name]) for name, kept in _LOWERED.items() if name in texts}
    llvm = [path for name, path in named.items() if name.endswith("ir-with-opt.ll")]
    if layout.TTIR in texts and llvm:  # the largest one; others have the constants alone
        files[layout.LLVM] = max(llvm, key=lambda path: path.stat().st_size)
    steps = list(_steps(named, texts, files))
    is_printed = layout.PTX in files
    passes: list[Pass] = []
    before: str | None = None
    for number, step in enumerate(steps):
        text = step.text
        if text is None and not (has_failed and not is_printed):
            break  # MLIR does not print the text after the last pass
        changed = text is not None and text != before
        encoded = _encoded(text if text is not None else before or "")
        file = None
        if changed:
            file = f"{layout.pass_file(number, step.name)}{layout.COMPRESSED}"
            files[file] = gzip.compress(encoded, _LEVEL, mtime=0)
        passes.append(
            Pass(
                number=number,
                name=step.name,
                size=len(encoded),
                seconds=None,
                changed=changed,
                failed=text is None,
                file=file,
            )
        )
        before = text if text is not None else before
    return passes, files


def _steps(named: Mapping[str, Path], texts: Mapping[str, str], files: Files) -> Iterator[_Step]:
    """Yield the passes of the back end that compiled the kernel; add Mosaic GPU's first text."""
    logs = {end: path for name, path in named.items() for end in _LOGS if name.endswith(end)}
    if _OF_TRITON in logs:
        yield from _split(triton_lines.pretty_as_mlir(_text(logs[_OF_TRITON])))[1]
        return
    first, steps = _split(_text(logs[_OF_MOSAIC]) if _OF_MOSAIC in logs else "")
    if _BEFORE in texts:
        files[layout.MOSAIC] = _encoded(texts[_BEFORE])
        yield _Step(name="infer-layouts", text=texts.get(_AFTER))
        if _AFTER in texts:
            yield _Step(name="lower-mosaic-gpu", text=first or None)
    elif first:
        files[layout.MOSAIC] = _encoded(first)
    yield from steps


def _split(log: str) -> tuple[str, list[_Step]]:
    """Return the text before the first pass, and the passes."""
    heads = list(_DUMP.finditer(log))
    ends = [*(head.start() for head in heads[1:]), len(log)][: len(heads)]
    texts = [
        log[head.end() : end].strip("\n") + "\n" for head, end in zip(heads, ends, strict=True)
    ]
    after = [*texts[1:], None][: len(heads)]
    steps = [
        _Step(name=head["name"] or head["class"], text=text)
        for head, text in zip(heads, after, strict=True)
    ]
    return texts[0] if texts else "", steps


def _encoded(text: str) -> bytes:
    return text.encode(errors="replace")


def _text(path: Path) -> str:
    return path.read_text(errors="replace")
