"""The table of a verdict, built from what was asked for and then filled with what was answered.

A cell without an answer is `unjudged`: no engine that fails, and no compilation that never
starts, can leave a hole in the table. Pure functions; no engine, no jax.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pallas_debug.verdict.result import Engine, Outcome, Status

DIGITS = 8
"""Hex digits of the digest that tell kernels of one name apart, as in the folders of a dump."""

NO_ANSWER = "the engine ended without an answer (please report it)"

_RANK: tuple[Status, ...] = ("skipped", "ok", "unsupported", "unjudged", "found")
"""From the least to the most that a reader must know; of several answers the last one counts."""


@dataclass(frozen=True, kw_only=True)
class AskedKernel:
    """A kernel that is to be judged; without a digest where it could not be captured."""

    name: str
    digest: str = ""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a verdict is asked for.

    Attributes:
      targets: for which `compile` is asked.
      elsewhere: by digest, targets for which the function does not call the kernel, and why.
      by_name: whether the engines were named. An engine that was named has to judge: its limits
        count as work that was not done.
    """

    kernels: tuple[AskedKernel, ...]
    engines: tuple[Engine, ...]
    targets: tuple[str, ...] = ()
    elsewhere: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    by_name: bool = False


def cells(asked: Asked) -> tuple[Outcome, ...]:
    """One outcome for each kernel, engine and target; none of them judged yet."""
    found = []
    for kernel, engine in itertools.product(dict.fromkeys(asked.kernels), asked.engines):
        if engine == "trace":  # it is asked of the whole function
            continue
        for target in asked.targets if engine == "compile" else (None,):
            why = asked.elsewhere.get(kernel.digest, {}).get(target or "")
            cell = Outcome(
                kernel=kernel.name,
                digest=kernel.digest,
                engine=engine,
                target=target,
                status="unjudged" if why is None else "skipped",
                reason=NO_ANSWER if why is None else why,
            )
            found.append(cell)
    return tuple(found)


def fill(asked: Asked, answers: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """The cells, each with its answer; whatever was answered besides comes first.

    Of several answers to one cell the worst counts, with the notes of all.
    """
    by_cell: dict[tuple[object, ...], list[Outcome]] = {}
    for answer in answers:
        by_cell.setdefault(_key(answer), []).append(answer)
    filled = []
    for cell in cells(asked):
        given = by_cell.pop(_key(cell), [])
        filled.append(_named(worst(given) if given else cell, asked))
    besides = [answer for given in by_cell.values() for answer in given]
    return (*besides, *filled)


def _key(outcome: Outcome) -> tuple[object, ...]:
    return outcome.kernel, outcome.digest, outcome.engine, outcome.target


def worst(answers: Sequence[Outcome]) -> Outcome:
    """What several answers to one cell come to: the worst status, and the notes of all."""
    most = max(answers, key=lambda answer: _RANK.index(answer.status))
    notes = dict.fromkeys(note for answer in answers for note in answer.notes)
    seconds = [answer.seconds for answer in answers if answer.seconds is not None]
    return replace(most, notes=tuple(notes), seconds=sum(seconds) if seconds else None)


def _named(outcome: Outcome, asked: Asked) -> Outcome:
    if asked.by_name and outcome.status == "unsupported":
        return replace(outcome, status="unjudged")
    return outcome


def labels(kernels: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """What to call each kernel, by name and digest: its name, with digits where several share it.

    Names come from the user's code and may hold anything: control characters are escaped, so that a
    name is one word on one line.
    """
    known = list(dict.fromkeys(kernels))
    names = [name for name, _ in known]
    return {
        (name, digest): visible(name)
        if names.count(name) == 1
        else f"{visible(name)}-{digest[:DIGITS] or 'not-captured'}"
        for name, digest in known
    }


def visible(name: str) -> str:
    """A name on one line: control characters, and what looks like them, as escapes."""
    if name.isprintable():
        return name
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def judgements(outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """The cells in which there is something to judge."""
    return tuple(o for o in outcomes if o.kernel and o.status != "skipped")
