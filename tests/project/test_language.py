"""Plain language: phrases that documentation, docstrings, comments and messages avoid.

A phrase counts wherever it occurs, in identifiers too. Rooms that still have some are listed with
their number: lower it as they are cleaned, and never raise it.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).relative_to(ROOT)

PLAIN = {
    "anew": "again",
    "aside": "hidden, apart, except for",
    "away with": "remove",
    "came upon": "found",
    "come upon": "find",
    "for lack of": "without",
    "for want of": "without",
    "heeded": "honoured",
    "makes no sense": "is invalid",
    "nobody": "no one, or the program that does it",
    "of its own account": "by itself",
    "seldom": "rarely",
    "that there is not": "unknown, missing",
    "thereof": "of it",
    "to be had": "available",
    "unless told": "by default",
    "whereof": "of which",
    "whoever": "the caller, the user",
}
"""What not to write, and what to write instead."""

OPEN = {"tests": 42}
"""Maximum number of these phrases in rooms that are not clean yet."""

_PHRASE = re.compile(
    rf"(?<![a-z])(?:{'|'.join(PLAIN)})(?![a-z])".replace(" ", r"\s+(?:#\s+)?"), re.IGNORECASE
)


def sources() -> list[Path]:
    found = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    for folder in ("pallas_debug", "pytest_plugin", "kernels", "docs", "tests", "benchmarks"):
        found += [
            path
            for path in (ROOT / folder).rglob("*")
            if path.suffix in (".py", ".md") and path != Path(__file__)
        ]
    return sorted(found)


def room(path: Path) -> str:
    """`tests`, a package of `pallas_debug`, a room of its bridge, or two folders elsewhere."""
    parts = path.relative_to(ROOT).parts[:-1]
    if parts[:1] == ("tests",) or parts[:2] == ("pallas_debug", "_api"):
        return parts[0]
    return "/".join(parts[: 3 if parts[:2] == ("pallas_debug", "bridge") else 2])


def test_plain_language() -> None:
    counts: Counter[str] = Counter()
    places = []
    for path in sources():
        text = path.read_text()
        for match in _PHRASE.finditer(text):
            counts[room(path)] += 1
            line = text.count("\n", 0, match.start()) + 1
            phrase = re.sub(r"[\s#]+", " ", match[0]).lower()
            if room(path) not in OPEN:
                write = PLAIN[phrase]
                places.append(f"{path.relative_to(ROOT)}:{line}: {match[0]!r}; write: {write}")
    assert not places, "\n".join(places)
    grown = {name: f"{counts[name]} > {most}" for name, most in OPEN.items() if counts[name] > most}
    assert not grown, f"more phrases to avoid than before: {grown}"
