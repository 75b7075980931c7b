"""Explanations of compiler messages, failures and findings.

Floor 1: reads text and `model` alone, and never imports jax. `catalogue/` holds the entries,
`recognise.py` finds the one that a text is about, `logs.py` reads whole logs, `memory.py`, `fit.py`
and `layouts.py` read what a message says in figures, `known.py` lists faults of releases.
"""

from __future__ import annotations

from collections.abc import Iterable

from pallas_debug.findings.explain import explained as _explained
from pallas_debug.findings.explain import recognise
from pallas_debug.findings.explain.catalogue import CATALOGUE as CATALOGUE
from pallas_debug.findings.explain.catalogue import TOPICS as TOPICS
from pallas_debug.findings.explain.explained import Explained as Explained
from pallas_debug.findings.explain.explained import headline as headline
from pallas_debug.findings.explain.known import KnownIssue as KnownIssue
from pallas_debug.findings.explain.known import known_issues as known_issues
from pallas_debug.findings.explain.logs import Occurrence as Occurrence
from pallas_debug.findings.explain.logs import Scan as Scan
from pallas_debug.findings.explain.logs import read as read
from pallas_debug.findings.explain.logs import scan as scan
from pallas_debug.findings.explain.recognise import entry as entry
from pallas_debug.model import Explanation, Failure, Finding, Kernel

WHAT_TO_ATTACH = (
    "the message whole, with its traceback",
    "versions of jax, jaxlib and libtpu (`pallas-debug doctor --json`), and the target",
    "the kernel's folder of a dump (`pallas-debug dump SCRIPT.py`): its source, jaxpr and passes",
    "whether both interpret modes give the same",
)
"""For an error that no entry recognises."""

UNKNOWN_ADVICE = "nobody here knows this error; to report it attach " + "; ".join(WHAT_TO_ATTACH)


def explain(
    text: str,
    *,
    kernel: Kernel | None = None,
    extra: Iterable[Explanation] = (),
) -> Explained | None:
    """What a message means; None where no entry recognises it.

    Args:
      text: a message, with or without its traceback.
      kernel: that which failed, where it is known: its operands name what the message counts.
      extra: entries to try first, such as those of plugins.
    """
    known = kernel is not None
    found = recognise.first(text, extra, in_context=known) or recognise.first(
        text, CATALOGUE, in_context=known
    )
    return None if found is None else _explained.explained(found, text, kernel)


def of_failure(
    failure: Failure, kernel: Kernel | None = None, extra: Iterable[Explanation] = ()
) -> Explained | None:
    """What a failed compilation means."""
    # What we refuse ourselves has the kind of a finding for its type.
    name = kernel.name if kernel else "?"
    text = f"{failure.type} in kernel `{name}`\n{failure.message}"
    found = recognise.first(text, extra, in_context=True) or recognise.first(
        text, CATALOGUE, in_context=True
    )
    return None if found is None else _explained.explained(found, failure.message, kernel)


def of_finding(finding: Finding) -> Explained | None:
    """What a finding means in general; its own cause and advice say more of the case at hand."""
    found = recognise.of_kind(finding.kind)
    said = recognise.first(finding.message, in_context=True)
    if found is None or (finding.kind == "InterpretError" and said is not None):
        found = said
    return None if found is None else Explained(entry=found, kernel=finding.kernel)
