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

from pallas_debug.ir.chains import Chains
from pallas_debug.ir.llo import LOCATION
from pallas_debug.ir.operations import LONG, Kind, Module, location_at
from pallas_debug.model import SourceLine
from pallas_debug.render import visible

ChainsOfLine = tuple[tuple[SourceLine, ...], ...]

MAX_LINE = 4000
"""Maximum characters shown of a line: one may contain a constant of ten million."""

_SEPARATOR = (-1, -1)
"""Between the chains of one line, in flat lists of the numbers of files and lines."""

_LEVEL = 4
_SUSPICIOUS = re.compile(r"[^\t\n\x20-\x7e]")


_ALIAS = "#loc"
_OF_ARGUMENT = re.compile(r" loc\((?:#loc\d*|unknown)\)")


@dataclass(frozen=True, kw_only=True)
class Text:
    """A text to be packed.

    Attributes:
      name: as users write it: `jaxpr`, `12-apply-vector-layout`.
      text: None if it is missing.
      problem: why it is missing.
      made: the text as JSON, if it has been packed already.
    """

    name: str
    text: str | None = None
    problem: str | None = None
    made: dict[str, Any] | None = None


@dataclass
class Packer:
    """Texts of one kernel, which share the tables of files and chains.

    Attributes:
      files: names of Python files.
      chains: chains of Python lines of a line of text, innermost first; several for a bundle of
        several instructions.
      moved: returns the line of the shown source for one of an older source.
    """

    files: dict[str, int] = field(default_factory=dict)
    chains: dict[ChainsOfLine, int] = field(default_factory=dict)
    moved: Callable[[SourceLine], SourceLine] = lambda line: line
    _tables: dict[tuple[str, ...], tuple[Chains, dict[str, tuple[str, int]]]] = field(
        default_factory=dict, repr=False
    )
    """For each kind and its aliases, lines without locations, and the numbers of their chains.

    Two thirds of a module's passes share their aliases, and most of their lines.
    """

    def text(self, text: Text) -> dict[str, Any]:
        """A text as JSON: its lines without locations, and for each the number of its chain."""
        if text.made is not None:
            return text.made
        if text.text is None:
            return {"name": text.name, "problem": text.problem or "it is not in the dump"}
        module = Module.of(text.text)
        is_mlir = module.kind == "mlir"
        aliases = tuple(line for line in module.lines if is_mlir and line.startswith(_ALIAS))
        resolver, known = self._tables.setdefault((module.kind, *aliases), (Chains(aliases), {}))
        found: list[tuple[str, int]] = []
        for number, line in enumerate(module.lines):
            if is_mlir and line.startswith(_ALIAS):
                continue
            if line not in known:
                bare, bodies = _divided(line, module.kind)
                is_jaxpr = module.kind == "jaxpr"
                chains = [module.source(number)] if is_jaxpr else map(resolver.resolve, bodies)
                known[line] = bare, self.number(*chains)
            found.append(known[line])
        while found and not found[-1][0]:
            found.pop()
        lines, numbers = [bare for bare, _ in found], [chain for _, chain in found]
        return listed(text.name, module.kind, lines, numbers)

    def number(self, *chains: tuple[SourceLine, ...]) -> int:
        """The number of the chains of a line, -1 for none."""
        of_line = tuple(dict.fromkeys(filter(None, chains)))
        return self.chains.setdefault(of_line, len(self.chains)) if of_line else -1

    def tables(self) -> dict[str, Any]:
        """The tables that the texts refer to, once all are packed."""
        chains = [
            [n for chain in chains for n in (*_SEPARATOR, *self._flat(chain))][2:]
            for chains in self.chains
        ]
        return {"chains": chains, "files": [shown(name) for name in self.files]}

    def _flat(self, chain: Iterable[SourceLine]) -> Iterable[int]:
        return (n for line in map(self.moved, chain) for n in (self._file(line.file), line.line))

    def _file(self, name: str) -> int:
        return self.files.setdefault(name, len(self.files))


def listed(name: str, kind: str, lines: Sequence[str], chains: Iterable[int]) -> dict[str, Any]:
    """A text as JSON."""
    return {"name": name, "kind": kind, "text": _joined(lines), "chains": runs(chains)}


def _divided(line: str, kind: Kind) -> tuple[str, Sequence[str]]:
    """Divide a line into its text without locations, and the bodies of these."""
    if kind in ("llo", "bundles"):
        if "/* loc(" not in line:
            return line, ()
        return LOCATION.sub("", line), LOCATION.findall(line, 0, LONG)
    at = location_at(line, kind) if kind != "text" else None
    bare = line if at is None else line[: at[0]] + line[at[1] :]
    if kind == "mlir" and " loc(" in bare:
        bare = _OF_ARGUMENT.sub("", bare)
    body = line[slice(*at)].strip().removeprefix("loc(").removesuffix(")") if at else ""
    return bare, (body,) if body else ()


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
