"""Compiler texts for the page: without locations, with the Python lines of each line, compressed.

Locations make up a third of a text and most of what a reader skips. They are stored once, as chains
of Python lines, and each line of text has the number of its chain.

Texts are compressed in chunks: the passes of a target share most of their lines, so together they
take two thirds of the bytes that they take apart. The page inflates a chunk when it is first shown.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pallas_debug.ir.operations import Kind, Module, location_at
from pallas_debug.model import SourceLine
from pallas_debug.render import visible

MAX_LINE = 4000
"""Maximum characters shown of a line: one may contain a constant of ten million."""

_LEVEL = 6
_ALIAS = "#loc"
_OF_ARGUMENT = re.compile(r" loc\((?:#loc\d*|unknown)\)")
_SUSPICIOUS = re.compile(r"[^\t\n\x20-\x7e]")


@dataclass(frozen=True, kw_only=True)
class Text:
    """A text to be packed.

    Attributes:
      name: as users write it: `jaxpr`, `12-apply-vector-layout`.
      text: None if it is missing.
      problem: why it is missing.
    """

    name: str
    text: str | None = None
    problem: str | None = None


@dataclass
class Packer:
    """Texts of one kernel, which share the tables of files and chains.

    Attributes:
      files: names of Python files.
      chains: chains of Python lines, innermost first, as flat lists of file and line numbers.
    """

    files: dict[str, int] = field(default_factory=dict)
    chains: dict[tuple[SourceLine, ...], int] = field(default_factory=dict)

    def text(self, text: Text) -> dict[str, Any]:
        """A text as JSON: its lines, and for each the number of its chain, -1 for none."""
        if text.text is None:
            return {"name": text.name, "problem": text.problem or "it is not in the dump"}
        module = Module.of(text.text)
        lines, chains = self._unlocated(module)
        return {
            "name": text.name,
            "kind": module.kind,
            "text": shown("\n".join(lines)),
            "chains": runs(chains),
        }

    def tables(self) -> dict[str, Any]:
        """The tables that the texts refer to, once all are packed."""
        chains = [
            [n for line in chain for n in (self._file(line.file), line.line)]
            for chain in self.chains
        ]
        return {"chains": chains, "files": [shown(name) for name in self.files]}

    def _unlocated(self, module: Module) -> tuple[list[str], list[int]]:
        lines, chains = [], []
        for number, line in enumerate(module.lines):
            if line.startswith(_ALIAS):
                continue
            chains.append(self._chain(module.source(number)))
            lines.append(shortened(_without_location(line, module.kind)))
        while lines and not lines[-1]:
            lines.pop()
            chains.pop()
        return lines, chains

    def _chain(self, source: tuple[SourceLine, ...]) -> int:
        return self.chains.setdefault(source, len(self.chains)) if source else -1

    def _file(self, name: str) -> int:
        return self.files.setdefault(name, len(self.files))


def _without_location(line: str, kind: Kind) -> str:
    if kind == "mlir":
        at = location_at(line, kind)
        return _OF_ARGUMENT.sub("", line if at is None else line[: at[0]] + line[at[1] :])
    while (at := location_at(line, kind)) is not None:
        line = line[: at[0]] + line[at[1] :]
        if kind == "jaxpr":
            break
    return line


def runs(numbers: Iterable[int]) -> list[int]:
    """Run lengths: `[7, 7, 7, 2]` becomes `[7, 3, 2, 1]`."""
    found: list[int] = []
    for number in numbers:
        if found and found[-2] == number:
            found[-1] += 1
        else:
            found += (number, 1)
    return found


def shortened(line: str) -> str:
    """A line of at most `MAX_LINE` characters, which says how many were left out."""
    if len(line) <= MAX_LINE:
        return line
    return f"{line[:MAX_LINE]} … {len(line) - MAX_LINE:,} more characters"


def shown(text: str) -> str:
    """Make invisible characters visible; fast for plain text."""
    return visible(text) if _SUSPICIOUS.search(text) else text


def compressed(document: Any) -> str:
    """A JSON document, deflated, in base64: it contains nothing that HTML would interpret."""
    data = json.dumps(document, separators=(",", ":")).encode()
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -15)
    return base64.b64encode(packer.compress(data) + packer.flush()).decode()


def document(packer: Packer, texts: Sequence[Text]) -> dict[str, Any]:
    """Texts and their tables, as one chunk."""
    packed = [packer.text(text) for text in texts]
    return {"texts": packed, **packer.tables()}
