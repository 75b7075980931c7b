"""HTML from data that is not trusted: everything is escaped unless it is already `Markup`."""

from __future__ import annotations

import functools
import html
from collections.abc import Iterable

from pallas_debug.render import visible


class Markup(str):
    """HTML that can be inserted as it is."""

    __slots__ = ()


Child = str | int | Iterable["Child"] | None
"""Content of an element: text, which is escaped, `Markup`, or several of these."""

_VOID = frozenset(("br", "hr", "img", "input", "link", "meta"))
"""Elements without content, and without a closing tag."""


@functools.lru_cache(maxsize=1024, typed=True)  # most texts are names of classes and kinds
def escape(text: str) -> Markup:
    """Escape text for an element or an attribute, and make invisible characters visible."""
    if isinstance(text, Markup):
        return text
    return Markup(html.escape(visible(text)))


def tag(name: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Markup:
    """An element.

    Attributes are named as in Python, `class_` or `aria_label`; those that are None or False are
    left out, and True gives one without a value.
    """
    parts = [f"<{name}"]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        label = key.removesuffix("_").replace("_", "-")
        parts.append(f" {label}" if value is True else f' {label}="{escape(str(value))}"')
    parts.append(">")
    if name not in _VOID:
        parts += [join(children), f"</{name}>"]
    return Markup("".join(parts))


def join(children: Iterable[Child]) -> Markup:
    """Children one after the other."""
    return Markup("".join(map(_child, children)))


def _child(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):  # not in the cache: a hash of all that was made takes long
        return child
    if isinstance(child, str):
        return escape(child)
    if isinstance(child, int):
        return str(child)
    return join(child)
