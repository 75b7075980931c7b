"""Compiler texts for the page: without locations, with the Python lines of each line, compressed.

Locations make up a third of a text, and readers mostly skip them. They are stored once, as chains
of Python lines, and each line of text has the number of its chain.

Texts are compressed in chunks: the passes of a target share most of their lines, so together they
take two thirds of the bytes that they would take separately. The page inflates a chunk when it is
first shown.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pallas_debug.ir.chains import Chains
from pallas_debug.ir.operations import Kind, Module, location_at
from pallas_debug.model import SourceLine
from pallas_debug.render import visible

MAX_LINE = 4000
"""Maximum characters shown of a line: one may contain a constant of ten million."""

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
    """

    name: str
    text: str | None = None
    problem: str | None = None


@dataclass
class Packer:
    """Texts of one kernel, which share the tables of files and chains.

    Attributes:
      files: names of Python files.
      chains: Python lines of a line of text, innermost first.
      moved: returns the line of the shown source for one of an older source.
    """

    files: dict[str, int] = field(default_factory=dict)
    chains: dict[tuple[SourceLine, ...], int] = field(default_factory=dict)
    moved: Callable[[SourceLine], SourceLine] = lambda line: line
    _tables: dict[tuple[str, ...], tuple[Chains, dict[str, tuple[str, int]], dict[str, int]]] = (
        field(default_factory=dict, repr=False)
    )
    """For each kind and its aliases, lines without locations with the numbers of their chains, and
    the numbers of the chains of locations.

    Two thirds of a module's passes share their aliases, and most of their lines.
    """

    def text(self, text: Text) -> dict[str, Any]:
        """A text as JSON: its lines without locations, and for each the number of its chain."""
        if text.text is None:
            return {"name": text.name, "problem": text.problem or "it is not in the dump"}
        module = Module.of(text.text)
        lines, kind = list(module.lines), module.kind
        aliases: tuple[str, ...] = ()
        if kind == "mlir":
            aliases = tuple(line for line in lines if line.startswith(_ALIAS))
            lines = [line for line in lines if not line.startswith(_ALIAS)]
        resolver, known, numbers = self._tables.setdefault(
            (kind, *aliases), (Chains(aliases), {}, {})
        )
        for number, line in enumerate(lines):
            if line not in known:
                bare, body = _divided(line, kind)
                if body not in numbers:
                    is_jaxpr = kind == "jaxpr"
                    chain = module.source(number) if is_jaxpr else resolver.resolve(body)
                    numbers[body] = self.number(chain)
                known[line] = bare, numbers[body]
        found = [known[line] for line in lines]
        while found and not found[-1][0]:
            found.pop()
        return listed(text.name, kind, [bare for bare, _ in found], [chain for _, chain in found])

    def number(self, chain: tuple[SourceLine, ...]) -> int:
        """The number of the chain of a line, -1 for none."""
        return self.chains.setdefault(chain, len(self.chains)) if chain else -1

    def tables(self) -> dict[str, Any]:
        """The tables that the texts refer to, once all are packed."""
        chains = [
            [n for line in map(self.moved, chain) for n in (self._file(line.file), line.line)]
            for chain in self.chains
        ]
        return {"chains": chains, "files": [shown(name) for name in self.files]}

    def _file(self, name: str) -> int:
        return self.files.setdefault(name, len(self.files))


def listed(name: str, kind: str, lines: Sequence[str], chains: Iterable[int]) -> dict[str, Any]:
    """A text as JSON."""
    return {"name": name, "kind": kind, "text": _joined(lines), "chains": runs(chains)}


def _divided(line: str, kind: Kind) -> tuple[str, str]:
    """Divide a line into its text without locations, and the body of its own one."""
    at = location_at(line, kind) if kind != "text" else None
    bare = line if at is None else line[: at[0]] + line[at[1] :]
    if kind == "mlir" and " loc(" in bare:
        bare = _OF_ARGUMENT.sub("", bare)
    return bare, line[slice(*at)].strip().removeprefix("loc(").removesuffix(")") if at else ""


def runs(numbers: Iterable[int]) -> list[int]:
    """Run lengths: `[7, 7, 7, 2]` becomes `[7, 3, 2, 1]`."""
    groups = itertools.groupby(numbers)
    return [n for number, group in groups for n in (number, sum(1 for _ in group))]


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
