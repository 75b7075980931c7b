"""Performance advice: what makes a kernel slow, with the evidence for it."""

from pallas_debug.profile.advice.advice import Advice as Advice
from pallas_debug.profile.advice.advice import AdviceKind as AdviceKind
from pallas_debug.profile.advice.advice import Evidence as Evidence
from pallas_debug.profile.advice.rules import KINDS as KINDS
from pallas_debug.profile.advice.subject import AdviceSubject as AdviceSubject
from pallas_debug.profile.advice.subject import StepCost as StepCost


def advise(subject: AdviceSubject) -> tuple[Advice, ...]:
    """Return all advice on a kernel."""
    return tuple(advice for kind in KINDS for advice in kind.rule(subject))
