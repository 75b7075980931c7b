"""Markdown: pages, tables, and docstrings turned into both."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Sequence


def page(title: str, source: str, parts: Sequence[str]) -> str:
    head = f"<!-- Written by docs/generate.py from {source}: edit that. -->"
    return "\n\n".join([head, f"# {title}", *parts]) + "\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, without columns that are empty in every row."""
    listed = [[" ".join(cell.replace("|", "\\|").split()) for cell in row] for row in rows]
    kept = [i for i in range(len(columns)) if any(row[i] for row in listed)]
    lines = [[columns[i] for i in kept], ["---"] * len(kept)]
    lines += [[row[i] for i in kept] for row in listed]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def docstring(thing: object) -> list[str]:
    """A docstring as Markdown: paragraphs, examples, and a table for `Args:` and the like."""
    parts: list[str] = []
    for paragraph in re.split(r"\n\n(?=\S)", inspect.getdoc(thing) or ""):
        head, _, rest = paragraph.partition("\n")
        if head == "Attributes:":
            continue  # in the table of fields
        if head in ("Args:", "Raises:"):
            column = "argument" if head == "Args:" else "raises"
            rows = [[f"`{name}`", text] for name, text in entries(rest)]
            parts.append(table([column, ""], rows))
        elif head == "Returns:":
            parts.append(f"Returns: {' '.join(rest.split())}")
        elif "\n    " in "\n" + paragraph:
            parts += _with_examples(paragraph)
        else:
            parts.append(" ".join(paragraph.split()))
    return parts


def _with_examples(text: str) -> list[str]:
    parts = []
    for chunk in re.split(r"\n\n(?=    )|\n\n(?=\S)", text):
        if chunk.startswith("    "):
            parts.append(f"```python\n{textwrap.dedent(chunk)}\n```")
        else:
            parts.append(" ".join(chunk.split()))
    return parts


def entries(text: str) -> list[tuple[str, str]]:
    """`name: text` entries of a section, which may go over several lines."""
    entries: list[tuple[str, str]] = []
    for line in inspect.cleandoc("\n" + text).splitlines():
        if line.startswith(" ") and entries:
            name, description = entries[-1]
            entries[-1] = (name, f"{description} {line.strip()}")
        elif line.strip():
            name, _, description = line.partition(": ")
            entries.append((name.lstrip("*").rstrip(":"), description))
    return entries


def first_line(thing: object) -> str:
    paragraph = (inspect.getdoc(thing) or "").split("\n\n")[0]
    return " ".join(paragraph.split())


def linked(text: str) -> str:
    """Escape words that Markdown would take for HTML or emphasis."""
    return text.replace("<", "&lt;")


def escaped(text: str) -> str:
    """Escape the characters that have a meaning in Markdown."""
    return re.sub(r"([*_<>\[\]])", r"\\\1", text)


def link_to(name: str) -> str:
    return f"[{name}](#{name.lower()})"
