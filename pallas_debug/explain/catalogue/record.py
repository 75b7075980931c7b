"""Constructor of catalogue entries, from messages as printed with `…` for what varies."""

from __future__ import annotations

import re

from pallas_debug.model import Explanation

JAX = "https://github.com/jax-ml/jax/issues/"
ERRORS = "https://openxla.org/xla/errors/error_"
OF_A_FINDING = "in kernel `"
PALLAS = "https://docs.jax.dev/en/latest/pallas/"


def entry(
    id: str,
    *messages: str,
    title: str,
    cause: str,
    advice: str,
    code: str | None = None,
    name: str | None = None,
    versions: str = "",
    targets: tuple[str, ...] = (),
    kind: str = "",
    kinds: tuple[str, ...] = (),
    links: tuple[str, ...] = (),
    ambiguous: bool = False,
    general: bool = False,
) -> Explanation:
    """Build an entry.

    Args:
      messages: the core of each, without prefix and exception class; `…` matches any text
        within a line.
      kind: kind of finding to report for such a failure; by default the first of `kinds`.
      name: XLA's name of the code. XLA prints both; a code alone may be another tool's.
    """
    parts = [_pattern(text) for text in messages]
    marks = [max(text.split("…"), key=len).strip() for text in messages]
    if code is not None and name is not None:
        parts.append(rf"\b{code}: {name}\b")
        marks.append(name)
    for word in kinds:  # as in our own reports
        parts.append(rf"\b{word} in kernel `")
        marks.append(OF_A_FINDING)
    page = (ERRORS + code[1:],) if code is not None else ()
    return Explanation(
        id=id,
        pattern="|".join(parts),
        cause=cause,
        advice=advice,
        title=title,
        code=code,
        versions=versions,
        targets=targets,
        kind=kind or (kinds[0] if kinds else ""),
        kinds=kinds,
        links=(*page, *links),
        marks=tuple(dict.fromkeys(marks)),
        ambiguous=ambiguous,
        general=general,
    )


def _pattern(text: str) -> str:
    return ".*?".join(re.escape(part) for part in text.split("…"))
