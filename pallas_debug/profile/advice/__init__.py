"""Performance advice: what makes a kernel slow, with the evidence for it."""

from dataclasses import replace

from pallas_debug.profile.advice.advice import Advice as Advice
from pallas_debug.profile.advice.advice import AdviceKind as AdviceKind
from pallas_debug.profile.advice.advice import Evidence as Evidence
from pallas_debug.profile.advice.rules import KINDS as KINDS
from pallas_debug.profile.advice.subject import AdviceSubject as AdviceSubject
from pallas_debug.profile.advice.subject import StepCost as StepCost


def advise(subject: AdviceSubject) -> tuple[Advice, ...]:
    """Return all advice on a kernel."""
    return tuple(advice for kind in KINDS for advice in kind.rule(subject))


def advise_if_compute_bound(subject: AdviceSubject) -> tuple[Advice, ...]:
    """Return the advice that a kernel would get if its copies did not hide its computation."""
    if not subject.is_memory_bound:
        return ()
    given = {(advice.kind, advice.source, advice.operand) for advice in advise(subject)}
    return tuple(
        advice
        for advice in advise(replace(subject, ignores_copies=True))
        if (advice.kind, advice.source, advice.operand) not in given and advice.source is not None
    )
