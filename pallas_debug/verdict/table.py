"""Verdict table: built from the request, then filled with the engines' answers.

A cell without an answer is `unjudged`: neither a failing engine nor a compilation that never starts
can leave a hole in the table. Pure functions; no engine, no jax.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pallas_debug.model import Finding, Gap, Kernel
from pallas_debug.render import one_line
from pallas_debug.verdict.result import JUDGED, Engine, Outcome, Status

DIGITS = 8
"""Number of digits of the digest that distinguish kernels of the same name, as in dumps."""

NO_ANSWER = "the engine ended without an answer (please report it)"

_RANK: tuple[Status, ...] = ("skipped", "ok", "unsupported", "unjudged", "found")
"""Statuses by increasing importance; of several answers to a cell, the most important counts."""


Kernels = Mapping[tuple[str, str], str | None]
"""Kernels by name and digest; the reason, for one that could not be captured and has no digest."""


def kernels(captured: Iterable[Kernel], lost: Iterable[Gap]) -> dict[tuple[str, str], str | None]:
    """Return the kernels to judge, with those that could not be captured."""
    found: dict[tuple[str, str], str | None] = {(k.name, k.digest): None for k in captured}
    return found | {(gap.kernel, ""): f"it could not be captured: {gap.reason}" for gap in lost}


def fill(
    kernels: Kernels,
    engines: Sequence[Engine],
    targets: Sequence[str],
    answers: Iterable[Outcome],
    *,
    by_name: bool = False,
    unanswered: str = NO_ANSWER,
) -> tuple[Outcome, ...]:
    """Fill each cell with its answer; answers that fit no cell come first.

    If a cell has several answers, the worst counts, with the gaps of all. A cell without an answer
    is not judged, for the reason `unanswered`.

    Args:
      targets: targets of `compile`.
      by_name: whether the engines were requested by name. Such an engine must judge everything: a
        kernel beyond its limits counts as not done.
    """
    by_cell: dict[tuple[object, ...], list[Outcome]] = {}
    for answer in answers:
        by_cell.setdefault(_key(answer), []).append(answer)
    filled = []
    for (kernel, digest), lost in kernels.items():
        for engine in engines:
            for target in targets if engine == "compile" else (None,):
                cell = Outcome(
                    kernel=kernel,
                    digest=digest,
                    engine=engine,
                    target=target,
                    status="unjudged",
                    reason=lost or unanswered,
                )
                if engine != "trace":  # it judges the whole function
                    filled.append(worst(by_cell.pop(_key(cell), [cell])))
    besides = [answer for given in by_cell.values() for answer in given]
    judged = {(o.kernel, o.digest) for o in filled if o.status in JUDGED}
    # A kernel beyond the limits of an engine counts as not judged if the engine was named, or if no
    # other engine judged it either.
    return (
        *besides,
        *(
            replace(o, status="unjudged")
            if o.status == "unsupported" and (by_name or (o.kernel, o.digest) not in judged)
            else o
            for o in filled
        ),
    )


def cleared(outcomes: Iterable[Outcome], findings: Sequence[Finding]) -> list[Outcome]:
    """Engines of whose findings on a kernel none is left found nothing.

    Args:
      findings: those that are left.
    """
    left = {(f.kernel, digest, e) for f in findings for e in f.engines for digest in (f.digest, "")}

    def outcome(one: Outcome) -> Outcome:
        of_any = {(one.kernel, one.digest, one.engine), (one.kernel, "", one.engine)}
        is_kept = one.status != "found" or one.engine not in ("static", "machine") or of_any & left
        return one if is_kept else replace(one, status="ok")

    return [outcome(one) for one in outcomes]


def _key(outcome: Outcome) -> tuple[object, ...]:
    return outcome.kernel, outcome.digest, outcome.engine, outcome.target


def worst(answers: Sequence[Outcome]) -> Outcome:
    """Combine several answers to one cell: the worst status, and the gaps of all."""
    most = max(answers, key=lambda answer: _RANK.index(answer.status))
    gaps = dict.fromkeys(gap for answer in answers for gap in answer.gaps)
    return replace(most, gaps=tuple(gaps))


def labels(kernels: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Label each kernel, given by name and digest: its name, plus digits if several share it.

    Names come from user code and may contain anything: control characters are escaped, so that a
    name is one word on one line.
    """
    known = list(dict.fromkeys(kernels))
    names = [name for name, _ in known]
    return {
        (name, digest): one_line(name)
        if names.count(name) == 1
        else f"{one_line(name)}-{digest[:DIGITS] or 'not-captured'}"
        for name, digest in known
    }


def judgements(outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """Outcomes of cells that have something to judge, without skipped ones."""
    return tuple(o for o in outcomes if o.kernel and o.status != "skipped")
