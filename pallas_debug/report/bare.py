"""Texts without locations, and the Python lines behind each of their lines; for whole texts.

`Module` handles one line at a time. This module reads a text once and resolves each location once:
a text of 10,000 lines has a few hundred locations.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pallas_debug.ir.chains import Chains
from pallas_debug.ir.llo import LOCATION
from pallas_debug.ir.operations import LONG, Module, location_at
from pallas_debug.model import SourceLine

ChainsOfLine = tuple[tuple[SourceLine, ...], ...]

Tables = dict[tuple[str, ...], tuple[Chains, dict[str, tuple[str, ChainsOfLine]]]]
"""Resolvers of aliases and the lines they were used for, keyed by what defines the aliases.

Two thirds of a module's passes share their aliases, and most of their lines.
"""

_ALIAS = "#loc"
_OF_ARGUMENT = re.compile(r" loc\((?:#loc\d*|unknown)\)")


@dataclass(frozen=True, kw_only=True)
class BareText:
    """A text without locations.

    Attributes:
      lines: lines without the definitions of locations.
      chains: for each line, the chains of Python lines it comes from, innermost function first;
        there are several for a bundle of several instructions.
    """

    lines: list[str]
    chains: list[ChainsOfLine]


def bare_text(module: Module, tables: Tables | None = None) -> BareText:
    """Remove the locations of a text.

    Args:
      tables: cache for texts of the same kernel.
    """
    is_mlir = module.kind == "mlir"
    aliases = tuple(line for line in module.lines if is_mlir and line.startswith(_ALIAS))
    tables = {} if tables is None else tables
    resolver, known = tables.setdefault((module.kind, *aliases), (Chains(aliases), {}))
    found: list[tuple[str, ChainsOfLine]] = []
    for number, line in enumerate(module.lines):
        if is_mlir and line.startswith(_ALIAS):
            continue
        if line not in known:
            bare, bodies = _divided(module, number)
            sources = (
                _chains(module.source(number))
                if module.kind == "jaxpr"
                else _chains(*map(resolver.resolve, bodies))
            )
            known[line] = bare, sources
        found.append(known[line])
    while found and not found[-1][0]:
        found.pop()
    return BareText(lines=[bare for bare, _ in found], chains=[chains for _, chains in found])


def _divided(module: Module, number: int) -> tuple[str, tuple[str, ...]]:
    """Divide a line into its text without locations, and the bodies of these."""
    line = module.lines[number]
    if module.kind in ("llo", "bundles"):
        if "/* loc(" not in line:
            return line, ()
        return LOCATION.sub("", line), tuple(dict.fromkeys(LOCATION.findall(line, 0, LONG)))
    at = location_at(line, module.kind) if module.kind != "text" else None
    bare = line if at is None else line[: at[0]] + line[at[1] :]
    if module.kind == "mlir" and " loc(" in bare:
        bare = _OF_ARGUMENT.sub("", bare)
    body = line[slice(*at)].strip().removeprefix("loc(").removesuffix(")") if at else ""
    return bare, (body,) if body else ()


def _chains(*chains: tuple[SourceLine, ...]) -> ChainsOfLine:
    return tuple(dict.fromkeys(filter(None, chains)))
