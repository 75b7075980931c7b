"""Formatting of advice as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pallas_debug.profile.advice.advice import Advice


def advice_lines(advice: Advice) -> Iterator[str]:
    """Yield the lines of a piece of advice: where and what, the evidence, and the remedy."""
    place = f" at {advice.source}" if advice.source is not None else ""
    yield f"{advice.kind}{place}: {advice.message}"
    if advice.source is not None and advice.source.text:
        yield f"    {advice.source.text.strip()}"
    for evidence in advice.evidence:
        yield f"    - {evidence}"
    yield f"    remedy: {advice.remedy}"


def advice_text(found: Iterable[Advice]) -> str:
    """Format all advice, separated by empty lines."""
    return "\n\n".join("\n".join(advice_lines(advice)) for advice in found)
