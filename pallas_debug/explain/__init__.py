"""Explanations of compiler messages, failures and findings.

`explained` completes a failure when it is created, and `completed` a finding.
Floor 1: depends only on text and `model`, and never imports jax. `catalogue/` holds the entries,
`recognise.py` finds the entry for a text, `details.py` and `memory.py` extract facts from a
message, `logs.py` reads whole logs, `known.py` lists bugs in releases of libtpu.
"""

from __future__ import annotations

import re
from dataclasses import replace

from pallas_debug.errors import UsageError, meant
from pallas_debug.model import Explanation, Failure, Finding, Kernel

WHAT_TO_ATTACH = (
    "the full message with its traceback",
    "versions of jax, jaxlib and libtpu (`pallas-debug doctor --json`), and the target",
    "the kernel's folder of a dump (`pallas-debug dump SCRIPT.py`) with its source, jaxpr and "
    "passes",
    "whether the interpret modes give the same results",
)
"""Items to attach to a report of an unrecognised error."""


def explained(failure: Failure, kernel: Kernel | None = None) -> Failure:
    """Add an explanation to a failure, unless it has one or none is known.

    Args:
      kernel: the failed kernel, if known, for operand names and block sizes.
    """
    return replace(failure, explanation=of_failure(failure, kernel))


def completed(finding: Finding, entry_id: str = "") -> Finding:
    """Add the cause and advice that its engine left out to a finding, if any is known.

    Args:
      entry_id: the entry that explains it, if it is not that of its kind.
    """
    if finding.cause is not None and finding.advice is not None:
        return finding
    known = entry(entry_id) if entry_id else of_finding(finding)
    if known is None:
        return finding
    cause = known.cause if finding.cause is None else finding.cause
    advice = known.advice if finding.advice is None else finding.advice
    return replace(finding, cause=cause, advice=advice)


def explain(
    text: str, *, kernel: Kernel | None = None, in_context: bool = False
) -> Explanation | None:
    """Explain a message; None if no entry recognises it.

    Args:
      text: a message, with or without its traceback.
      kernel: the failed kernel, if known, for operand names and block sizes.
      in_context: whether the text is known to be about a kernel, even if it is not known which.
    """
    from pallas_debug.explain import recognise

    found = recognise.first(text, in_context=in_context or kernel is not None)
    return _applied(found, text, kernel)


def of_failure(failure: Failure, kernel: Kernel | None = None) -> Explanation | None:
    """Explain a failure: as recorded, or else by the catalogue.

    Args:
      failure: as raised or as read from a dump.
      kernel: the failed kernel, if known, for operand names and block sizes.
    """
    from pallas_debug.explain import recognise

    if failure.explanation is not None:
        return failure.explanation
    # The type of a failure that we raise ourselves is the kind of a finding.
    name = kernel.name if kernel else "?"
    text = f"{failure.type} in kernel `{name}`\n{failure.message}"
    return _applied(recognise.first(text, in_context=True), failure.message, kernel)


def of_finding(finding: Finding) -> Explanation | None:
    """General explanation of a finding; its own cause and advice are more specific."""
    found = next((entry for entry in entries() if finding.kind in entry.kinds), None)
    if found is None:
        return explain(finding.message, in_context=True)
    return _applied(found, finding.message)


def of_kind(kind: str) -> tuple[Explanation, ...]:
    """Explanations of a kind of finding. One of failed compilation may have several, by message."""
    general = next((entry for entry in entries() if kind in entry.kinds), None)
    if general is not None:
        return (general,)
    return tuple(entry for entry in entries() if entry.kind == kind)


def entries() -> tuple[Explanation, ...]:
    """All entries."""
    from pallas_debug.explain import catalogue

    return catalogue.CATALOGUE


def entry(name: str) -> Explanation:
    """Look up an entry by its id or XLA error code.

    Raises:
      UsageError: there is none; the message suggests similar ids.
    """
    code, known = name.upper(), entries()
    is_code = re.fullmatch(r"E\d{4}", code) is not None
    for found in known:
        if name == found.id or (is_code and f"{code}:" in found.pattern):
            return found
    if is_code:
        codes = ", ".join(sorted(e.code for e in known if e.code))
        raise UsageError(f"unknown code {code}; the known ones are {codes}")
    hint = meant(name, (e.id for e in known))
    raise UsageError(
        f"there is no entry {name!r}{hint}; `pallas-debug explain --list` lists all of them"
    )


def _applied(
    entry: Explanation | None, text: str, kernel: Kernel | None = None
) -> Explanation | None:
    from pallas_debug.explain import details

    return None if entry is None else details.applied(entry, text, kernel)
