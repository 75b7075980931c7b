"""Texts without locations, and the Python lines behind each of their lines; for whole texts.

`Module` handles one line at a time. This module reads a text once and resolves each location once:
a text of 10,000 lines has a few hundred locations.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from pallas_debug.ir.chains import Chains
from pallas_debug.ir.llo import LOCATION
from pallas_debug.ir.operations import LONG, Module, location_at
from pallas_debug.model import SourceLine

ChainsOfLine = tuple[tuple[SourceLine, ...], ...]

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


@dataclass(frozen=True)
class KnownLocations:
    """Cache of resolved locations: two thirds of a module's passes share their aliases."""

    _tables: dict[tuple[str, ...], tuple[Chains, dict[str, ChainsOfLine]]] = field(
        default_factory=dict
    )

    def of(self, aliases: Sequence[str]) -> tuple[Chains, dict[str, ChainsOfLine]]:
        """Return the resolver of lines that define aliases, and the locations it has resolved."""
        key = tuple(aliases)
        if key not in self._tables:
            self._tables[key] = Chains(aliases), {"unknown": ()}
        return self._tables[key]


def bare_text(module: Module, locations: KnownLocations | None = None) -> BareText:
    """Remove the locations of a text.

    Args:
      locations: cache for texts of the same kernel.
    """
    if module.kind == "mlir":
        lines, chains = _bare_mlir(module, locations or KnownLocations())
    elif module.kind in ("llo", "bundles"):
        lines, chains = _bare_llo(module)
    elif module.kind == "jaxpr":
        lines, chains = _bare_jaxpr(module)
    else:
        lines = list(module.lines)
        chains = [()] * len(lines)
    while lines and not lines[-1]:
        lines.pop()
        chains.pop()
    return BareText(lines=lines, chains=chains)


def _bare_mlir(module: Module, locations: KnownLocations) -> tuple[list[str], list[ChainsOfLine]]:
    lines: list[str] = []
    chains: list[ChainsOfLine] = []
    resolver, known = locations.of([line for line in module.lines if line.startswith(_ALIAS)])
    for number, line in enumerate(module.lines):
        if line.startswith(_ALIAS):
            continue
        start = line.rfind(" loc(")
        body = line[start + 5 : -1] if start >= 0 and line.endswith(")") else ""
        if body.startswith(_ALIAS) or body == "unknown":
            found = known.get(body)
            if found is None:
                found = known[body] = _chains(resolver.resolve(body))
            chains.append(found)
            bare = line[:start]
        else:
            inline = module.location(number)
            chains.append(_chains(resolver.resolve(inline)) if inline else ())
            at = location_at(line, "mlir")
            bare = line if at is None else line[: at[0]] + line[at[1] :]
        lines.append(_OF_ARGUMENT.sub("", bare) if " loc(" in bare else bare)
    return lines, chains


def _bare_llo(module: Module) -> tuple[list[str], list[ChainsOfLine]]:
    lines: list[str] = []
    chains: list[ChainsOfLine] = []
    known: dict[tuple[str, ...], ChainsOfLine] = {(): ()}
    for line in module.lines:
        bodies: list[str] = LOCATION.findall(line, 0, LONG) if "/* loc(" in line else []
        key = tuple(dict.fromkeys(bodies))
        found = known.get(key)
        if found is None:
            found = known[key] = _chains(*map(module.chains.resolve, key))
        lines.append(LOCATION.sub("", line) if bodies else line)
        chains.append(found)
    return lines, chains


def _bare_jaxpr(module: Module) -> tuple[list[str], list[ChainsOfLine]]:
    lines: list[str] = []
    chains: list[ChainsOfLine] = []
    for number, line in enumerate(module.lines):
        at = location_at(line, "jaxpr") if "  # " in line else None
        lines.append(line if at is None else line[: at[0]] + line[at[1] :])
        chains.append(_chains(module.source(number)) if at is not None else ())
    return lines, chains


def _chains(*chains: tuple[SourceLine, ...]) -> ChainsOfLine:
    return tuple(dict.fromkeys(filter(None, chains)))
