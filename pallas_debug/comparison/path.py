"""Hints that lie on the way to a wrong value."""

from __future__ import annotations

from collections.abc import Iterable

from pallas_debug.findings.hints import HintKind
from pallas_debug.model import Finding, Hint


def on_path(hints: Iterable[Hint], finding: Finding) -> tuple[Hint, ...]:
    """Hints on the chain of writers behind a wrong value, nearest to the value first.

    A hint is on the chain if it is about a buffer of the chain and one of its lines, or about an
    input from which a value of the chain is computed.
    """
    nearest: dict[object, int] = {}
    inputs = {name for link in finding.chain for name in link.sources}
    for i, link in enumerate(finding.chain):
        nearest.setdefault(link.source and link.source.place, i)
    for line in (finding.source, finding.other):
        nearest.setdefault(line and line.place, 0)
    buffers = inputs | {link.buffer for link in finding.chain}
    found = []
    for hint in hints:
        lines = [nearest.get(line.place) for line in (hint.source, hint.other) if line is not None]
        known = [i for i in lines if i is not None]
        if hint.kind is HintKind.UNREAD_INPUT and hint.operand in inputs:
            known.append(len(finding.chain))
        is_here = hint.operand is None or hint.operand in buffers
        is_same = hint.kernel == finding.kernel
        if finding.chain and known and is_here and is_same:
            found.append((min(known), hint))
    return tuple(hint for _, hint in sorted(found, key=lambda one: one[0]))
