"""Texts without locations, and the Python lines behind each of their lines; for whole texts.

`Module` answers for a line at a time. This reads a text once, and resolves each location once: a
text of 10,000 lines has a few hundred.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pallas_debug.ir.operations import LONG, Module, location_at
from pallas_debug.model import SourceLine

Sources = tuple[SourceLine, ...]

_ALIAS = "#loc"
_OF_ARGUMENT = re.compile(r" loc\((?:#loc\d*|unknown)\)")
_IN_COMMENT = re.compile(r" ?/\* loc\(([^*]{0,4000}?)\) ?\*/")


@dataclass(frozen=True, kw_only=True)
class BareText:
    """A text without locations.

    Attributes:
      lines: without the definitions of locations.
      sources: for each line, the Python lines it comes from, innermost function first.
    """

    lines: list[str]
    sources: list[Sources]


def bare_text(module: Module) -> BareText:
    """Remove the locations of a text."""
    if module.kind == "mlir":
        lines, sources = _bare_mlir(module)
    elif module.kind in ("llo", "bundles"):
        lines, sources = _bare_llo(module)
    elif module.kind == "jaxpr":
        lines, sources = _bare_jaxpr(module)
    else:
        lines = list(module.lines)
        sources = [()] * len(lines)
    while lines and not lines[-1]:
        lines.pop()
        sources.pop()
    return BareText(lines=lines, sources=sources)


def _bare_mlir(module: Module) -> tuple[list[str], list[Sources]]:
    lines: list[str] = []
    sources: list[Sources] = []
    known: dict[str, Sources] = {"unknown": ()}
    for number, line in enumerate(module.lines):
        if line.startswith(_ALIAS):
            continue
        start = line.rfind(" loc(")
        body = line[start + 5 : -1] if start >= 0 and line.endswith(")") else ""
        if body.startswith(_ALIAS) or body == "unknown":
            found = known.get(body)
            if found is None:
                found = known[body] = module.chains.resolve(body)
            sources.append(found)
            bare = line[:start]
        else:
            sources.append(module.source(number))
            at = location_at(line, "mlir")
            bare = line if at is None else line[: at[0]] + line[at[1] :]
        lines.append(_OF_ARGUMENT.sub("", bare) if " loc(" in bare else bare)
    return lines, sources


def _bare_llo(module: Module) -> tuple[list[str], list[Sources]]:
    lines: list[str] = []
    sources: list[Sources] = []
    known: dict[tuple[str, ...], Sources] = {(): ()}
    for line in module.lines:
        bodies: list[str] = _IN_COMMENT.findall(line, 0, LONG) if "/* loc(" in line else []
        key = tuple(dict.fromkeys(bodies))
        found = known.get(key)
        if found is None:
            resolved = (source for body in key for source in module.chains.resolve(body))
            found = known[key] = tuple(dict.fromkeys(resolved))
        lines.append(_IN_COMMENT.sub("", line) if bodies else line)
        sources.append(found)
    return lines, sources


def _bare_jaxpr(module: Module) -> tuple[list[str], list[Sources]]:
    lines: list[str] = []
    sources: list[Sources] = []
    for number, line in enumerate(module.lines):
        at = location_at(line, "jaxpr") if "  # " in line else None
        lines.append(line if at is None else line[: at[0]] + line[at[1] :])
        sources.append(module.source(number) if at is not None else ())
    return lines, sources
