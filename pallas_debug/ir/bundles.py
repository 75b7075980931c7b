"""Final bundles of a kernel, as printed by libtpu: a sequence of VLIW instruction words.

    0x10 LB: > { %s1 = sadd.s32 1, %s0 /* loc("k.py":7:4 to :9) */  ;;  %v2 = vld [vmem:[%s1]] }

A bundle has an address, a mark (`LB`: body of a loop), one `>` per enclosing loop, and instructions
that issue together. Comments hold locations, the compiler's remarks, and the starts and ends of
regions. The reader accepts any text: parts that it does not recognise are kept as text, and a
truncated bundle ends the listing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pallas_debug.ir.chains import Chains
from pallas_debug.ir.llo import HEAD, OPERATION, VALUE
from pallas_debug.model import SourceLine

MAX_BUNDLES = 1 << 20
"""Maximum number of bundles to read; the largest kernel seen has 60,000."""

_HOLE = "\0"
_TOKEN = re.compile(rf"/\*|\*/|^{HEAD}", re.MULTILINE)
_START = re.compile(rf"{HEAD}(?P<body>\{{.*)")
_INSTRUCTION = re.compile(rf"{OPERATION}(?P<rest>.*)", re.DOTALL)
_PREDICATE = re.compile(r"\((?P<predicate>!?%p[\w$.-]*)(?:, (?P<kept>[^()]*))?\),?")
_LOCATION = re.compile(r"loc\((?P<body>.*)\)\s*$")
_REGION = re.compile(r"(?P<what>Start|End|Start/End empty) region (?P<number>\d{1,9})\b")
_TARGET = re.compile(r"\btarget = \$region(?P<number>\d{1,9})\b")


@dataclass(kw_only=True, slots=True)  # frozen, it would take three times as long to make
class Instruction:
    """An instruction of a bundle.

    Attributes:
      opcode: opcode as printed: `vadd.f32`, `vmatmul.bf16.gmra.mxu0`.
      results: names of the values that it defines; an instruction without a value has a number.
      operands: names of the values that it reads, without its predicate.
      arguments: operands as printed, including numbers and addresses.
      predicate: value that decides whether it runs, with `!` if it must be false; None if it always
        runs.
      kept: value that the result keeps if it does not run; None if there is none.
      text: the instruction without comments.
      locations: bodies of its `loc(…)`s, in order; several if several instructions were combined.
      remarks: the compiler's other comments.
    """

    opcode: str
    results: tuple[str, ...]
    operands: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    predicate: str | None = None
    kept: str | None = None
    text: str = ""
    locations: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def target(self) -> int | None:
        """Number of the region that a branch goes to."""
        found = _TARGET.search(self.text)
        return int(found["number"]) if found else None


@dataclass(kw_only=True, slots=True)
class Bundle:
    """Instructions that issue in the same cycle.

    Attributes:
      number: address of the bundle; the first is 0.
      line: first line of the bundle in the text, from 0.
      mark: `LB` for the body of a loop, another one of those explained at the top of every file, or
        empty.
      depth: number of enclosing loops.
      unread: parts that are not instructions.
      starts, ends: numbers of the regions that start before and end after it, in order.
      empties: numbers of the empty regions before it that branches go to.
    """

    number: int
    line: int
    mark: str
    depth: int
    instructions: tuple[Instruction, ...]
    unread: tuple[str, ...] = ()
    starts: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    empties: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class BundleListing:
    """All bundles of a text.

    Attributes:
      is_cut: whether the text ends within a bundle, or has more than `MAX_BUNDLES`.
    """

    bundles: tuple[Bundle, ...]
    is_cut: bool = False
    chains: Chains = field(default_factory=lambda: Chains(()), compare=False, repr=False)

    def sources(self, instruction: Instruction) -> tuple[SourceLine, ...]:
        """Python lines named by an instruction's locations, in order."""
        return self._sources(instruction.locations)

    def _sources(self, locations: tuple[str, ...]) -> tuple[SourceLine, ...]:
        known = self._known.get(locations)
        if known is None:
            lines = (line for body in locations for line in self.chains.resolve(body))
            known = self._known[locations] = tuple(dict.fromkeys(lines))
        return known

    @cached_property
    def _known(self) -> dict[tuple[str, ...], tuple[SourceLine, ...]]:
        return {}


def read_bundles(text: str) -> BundleListing:
    """Parse the text of a `final_bundles` file."""
    # Comments contain line breaks, braces and `;;`; without them, a bundle is one line.
    plain, comments = _without_comments(text.replace(_HOLE, "\N{REPLACEMENT CHARACTER}"))
    bundles: list[Bundle] = []
    read: dict[str, _Comment] = {}
    is_cut = False
    for line, row, inside in _rows(plain, comments):
        found = _START.match(row)
        if found is None:
            continue
        if len(bundles) == MAX_BUNDLES or "}" not in found["body"]:
            is_cut = True
            break
        bundles.append(_bundle(found, line, inside, read))
    return BundleListing(bundles=tuple(bundles), is_cut=is_cut)


def _without_comments(text: str) -> tuple[str, list[str]]:
    """Replace comments by placeholders. Comments nest, and none extends into the next bundle."""
    pieces: list[str] = []
    comments: list[str] = []
    depth = kept = opened = 0
    for token in _TOKEN.finditer(text):
        if token[0] == "/*":
            if depth == 0:
                pieces.append(text[kept : token.start()])
                opened = token.end()
            depth += 1
        elif depth and (token[0] != "*/" or depth == 1):
            is_closed = token[0] == "*/"
            pieces.append(_HOLE if is_closed else f"{_HOLE}\n")
            comments.append(text[opened : token.start()].removesuffix("" if is_closed else "\n"))
            kept = token.end() if is_closed else token.start()
            depth = 0
        elif depth:
            depth -= 1
    if depth:
        comments.append(text[opened:])
        pieces.append(_HOLE)
    else:
        pieces.append(text[kept:])
    return "".join(pieces), comments


def _rows(plain: str, comments: Sequence[str]) -> Iterator[tuple[int, str, Sequence[str]]]:
    """Yield each line without comments: its number in the text, the line, and its comments."""
    number = taken = 0
    for row in plain.split("\n"):
        holes = row.count(_HOLE)
        inside = comments[taken : taken + holes]
        yield number, row, inside
        taken += holes
        number += 1 + sum(comment.count("\n") for comment in inside)


_Comment = tuple[tuple[str, ...], tuple[str, ...]]
"""Locations and remarks in a comment. Most comments occur on several instructions."""


def _bundle(
    found: re.Match[str], line: int, comments: Sequence[str], read: dict[str, _Comment]
) -> Bundle:
    body = found["body"]
    # Braces inside: `[shape: f32[8,128], index: 0, shape index: {}]`.
    inside, _, after = body[1:].rpartition("}")
    before = body.count(_HOLE) - after.count(_HOLE)
    instructions: list[Instruction] = []
    unread: list[str] = []
    taken = 0
    for part in inside.split(";;"):
        holes = part.count(_HOLE)
        instruction = _instruction(part, comments[taken : taken + holes], read)
        taken += holes
        if instruction is not None:
            instructions.append(instruction)
        elif part.strip(f" \t{_HOLE}"):
            unread.append(part.replace(_HOLE, "").strip())
    regions = [r for comment in comments[before:] for r in _REGION.finditer(comment)]
    return Bundle(
        number=int(found["number"], 16 if found["number"].startswith("0x") else 10),
        line=line,
        mark=found["mark"] or "",
        depth=found["depth"].count(">"),
        instructions=tuple(instructions),
        unread=tuple(unread),
        starts=tuple(int(r["number"]) for r in regions if r["what"] == "Start"),
        ends=tuple(int(r["number"]) for r in regions if r["what"] == "End"),
        empties=tuple(int(r["number"]) for r in regions if r["what"].startswith("Start/End")),
    )


def _comment(comment: str) -> _Comment:
    locations: list[str] = []
    remarks: list[str] = []
    for piece in comment.split(" :: "):
        located = _LOCATION.match(piece.strip())
        if located:
            locations.append(located["body"])
        elif piece.strip():
            remarks.append(piece.strip())
    return tuple(locations), tuple(remarks)


def _instruction(
    part: str, comments: Sequence[str], read: dict[str, _Comment]
) -> Instruction | None:
    text = part.replace(_HOLE, "").strip()
    found = _INSTRUCTION.fullmatch(text)
    if found is None:
        return None
    rest = found["rest"]
    predicated = _PREDICATE.search(rest) if "%p" in rest else None
    locations: list[str] = []
    remarks: list[str] = []
    for comment in comments:
        known = read.get(comment)
        if known is None:
            known = read[comment] = _comment(comment)
        locations += known[0]
        remarks += known[1]
    kept = predicated["kept"] if predicated else None
    after = rest[: predicated.start()] + rest[predicated.end() :] if predicated else rest
    return Instruction(
        opcode=found["opcode"],
        results=tuple(found["results"].split(", ")),
        operands=tuple(VALUE.findall(after)),
        arguments=tuple(a for part in after.split(",") if (a := part.strip())),
        predicate=(predicated["predicate"] if predicated else None) or found["guard"],
        kept=kept.strip() if kept else None,
        text=" ".join(text.split()),
        locations=tuple(dict.fromkeys(locations)),
        remarks=tuple(remarks),
    )
