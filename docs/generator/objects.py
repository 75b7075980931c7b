"""Classes, functions and dataclasses as Markdown, from their signatures and docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Iterable

from generator.markdown import docstring, entries, first_line, table


def described_class(kind: type) -> list[str]:
    parts = [f"### {kind.__name__}", *docstring(kind)]
    if dataclasses.is_dataclass(kind):
        parts.append(fields_table(kind))
    rows = []
    for name, member in vars(kind).items():
        if name.startswith("_") or (dataclasses.is_dataclass(kind) and name in field_names(kind)):
            continue
        if isinstance(member, property) and member.__doc__:
            rows.append([f"`{name}`", f"`{_annotation(member.fget)}`", first_line(member)])
        elif inspect.isfunction(member) and member.__doc__:
            signature = _call(member)
            rows.append([f"`{name}{signature}`", f"`{_annotation(member)}`", first_line(member)])
    return [*parts, table(["member", "gives", "meaning"], rows)] if rows else parts


def _annotation(function: Callable[..., object] | None) -> str:
    return str(getattr(function, "__annotations__", {}).get("return", ""))


def _call(function: Callable[..., object]) -> str:
    names = [
        f"{name}=" if p.default is not p.empty else name
        for name, p in inspect.signature(function).parameters.items()
        if name != "self"
    ]
    return f"({', '.join(names)})"


def described_function(name: str, function: Callable[..., object]) -> list[str]:
    return [f"## {name}", f"```python\n{signature(function)}\n```", *docstring(function)]


def signature(function: Callable[..., object]) -> str:
    signature = inspect.signature(function)
    rendered = [p.replace() for p in signature.parameters.values() if p.name != "self"]
    lines = []
    star = False
    for p in rendered:
        if (
            p.kind is p.KEYWORD_ONLY
            and not star
            and not any(q.kind is q.VAR_POSITIONAL for q in rendered)
        ):
            lines.append("*")
        star = star or p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        prefix = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        default = "" if p.default is p.empty else f" = {p.default!r}"
        lines.append(f"{prefix}{p.name}: {p.annotation}{default}")
    returns = "" if signature.return_annotation == "Any" else f" -> {signature.return_annotation}"
    one = f"{function.__name__}({', '.join(lines)}){returns}"
    if len(one) <= 80:
        return one
    body = "".join(f"    {line},\n" for line in lines)
    return f"{function.__name__}(\n{body}){returns}"


def reachable(kinds: Iterable[type]) -> list[type]:
    """These dataclasses and those of their fields, each after the first that uses it."""
    found: list[type] = []

    def visit(kind: object) -> None:
        if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind not in found:
            found.append(kind)
            for used in typing.get_type_hints(kind).values():
                visit(used)
        for inner in typing.get_args(kind):
            visit(inner)

    for kind in kinds:
        visit(kind)
    return found


def field_names(kind: type) -> set[str]:
    return {f.name for f in dataclasses.fields(kind)}


def fields_table(kind: type) -> str:
    described = _attributes(kind)
    rows = []
    for f in dataclasses.fields(kind):
        default = ""
        if f.default is not dataclasses.MISSING:
            default = f"`{f.default!r}`"
        elif f.default_factory is not dataclasses.MISSING:
            default = f"`{f.default_factory()!r}`"
        rows.append([f"`{f.name}`", f"`{_type(str(f.type))}`", default, described.get(f.name, "")])
    return table(["field", "type", "default", "meaning"], rows)


def _type(text: str) -> str:
    """A type for readers of JSON, with the values of literals."""
    from pallas_debug import model

    if text in ("OperandKind", "Status", "Stage"):
        return str(getattr(model, text)).removeprefix("typing.")
    return text


def _attributes(kind: type) -> dict[str, str]:
    section = re.search(r"^Attributes:\n((?:  .*\n?|\n)+)", inspect.getdoc(kind) or "", re.M)
    return dict(entries(section[1])) if section else {}
