"""Compiler texts for the page: without locations, with the Python lines of each line, compressed.

Locations make up a third of a text, and readers mostly skip them. They are stored once, as chains
of Python lines, and each line of text has the number of its chain.

Texts are compressed in chunks: the passes of a target share most of their lines, so together they
take two thirds of the bytes that they would take separately. The page inflates a chunk when it is
first shown.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pallas_debug.ir.operations import Module
from pallas_debug.model import SourceLine
from pallas_debug.render import visible
from pallas_debug.report.bare import BareText, ChainsOfLine, Tables, bare_text

MAX_LINE = 4000
"""Maximum characters shown of a line: one may contain a constant of ten million."""

_SEPARATOR = (-1, -1)
"""Between the chains of one line, in flat lists of the numbers of files and lines."""

_LEVEL = 6
_SUSPICIOUS = re.compile(r"[^\t\n\x20-\x7e]")


@dataclass(frozen=True, kw_only=True)
class Text:
    """A text to be packed.

    Attributes:
      name: as users write it: `jaxpr`, `12-apply-vector-layout`.
      text: None if it is missing.
      problem: why it is missing.
      bare: the text, if it has been read already.
    """

    name: str
    text: str | None = None
    problem: str | None = None
    bare: BareText | None = None


@dataclass
class Packer:
    """Texts of one kernel, which share the tables of files and chains.

    Attributes:
      files: names of Python files.
      chains: chains of Python lines of a line of text, innermost first.
      moved: returns the line of the shown source for one of an older source.
    """

    files: dict[str, int] = field(default_factory=dict)
    chains: dict[ChainsOfLine, int] = field(default_factory=dict)
    moved: Callable[[SourceLine], SourceLine] = lambda line: line
    _tables: Tables = field(default_factory=dict, repr=False)
    _seen: dict[int, tuple[ChainsOfLine, int]] = field(default_factory=dict, repr=False)

    def text(self, text: Text) -> dict[str, Any]:
        """A text as JSON: its lines, and for each the number of its chain, -1 for none."""
        bare, kind = text.bare, "bundles"
        if bare is None:
            if text.text is None:
                return {"name": text.name, "problem": text.problem or "it is not in the dump"}
            module = Module.of(text.text)
            bare, kind = bare_text(module, self._tables), module.kind
        return {
            "name": text.name,
            "kind": kind,
            "text": _joined(bare.lines),
            "chains": runs(map(self._chain, bare.chains)),
        }

    def tables(self) -> dict[str, Any]:
        """The tables that the texts refer to, once all are packed."""
        chains = [
            [n for chain in chains for n in (*_SEPARATOR, *self._flat(chain))][2:]
            for chains in self.chains
        ]
        return {"chains": chains, "files": [shown(name) for name in self.files]}

    def _chain(self, sources: ChainsOfLine) -> int:
        if not sources:
            return -1
        # Texts share the tuples of a location, and comparing the lines of two is slow.
        known = self._seen.get(id(sources))
        if known is None or known[0] is not sources:
            known = sources, self.chains.setdefault(sources, len(self.chains))
            self._seen[id(sources)] = known
        return known[1]

    def _flat(self, chain: Iterable[SourceLine]) -> Iterable[int]:
        return (n for line in map(self.moved, chain) for n in (self._file(line.file), line.line))

    def _file(self, name: str) -> int:
        return self.files.setdefault(name, len(self.files))


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


def _joined(lines: Sequence[str]) -> str:
    """Lines as they are shown, shortened."""
    text = "\n".join(lines)
    if not text.isascii() or not text.replace("\n", "").replace("\t", "").isprintable():
        lines = [line if line.isprintable() else visible(line) for line in lines]
    elif max(map(len, lines), default=0) <= MAX_LINE:
        return text
    return "\n".join(map(shortened, lines))


def compressed(document: Any) -> str:
    """A JSON document, deflated, in base64: it contains nothing that HTML would interpret."""
    data = json.dumps(document, separators=(",", ":")).encode()
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -15)
    return base64.b64encode(packer.compress(data) + packer.flush()).decode()


def document(packer: Packer, texts: Sequence[Text]) -> dict[str, Any]:
    """Texts and their tables, as one chunk."""
    packed = [packer.text(text) for text in texts]
    return {"texts": packed, **packer.tables()}
