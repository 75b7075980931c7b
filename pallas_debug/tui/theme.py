"""Colours that every role of text can be read in, computed from a theme, and the styles of text.

Textual's own colours for text fall below a contrast of 2 in some of its themes, and know nothing of
the line under the cursor. Each is moved towards white or black here, as little as it takes.

Lines of a view are styled here instead of by CSS: Textual would apply its stylesheet to each view
and style several times at startup.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from rich.style import Style
from textual.app import App
from textual.color import BLACK, WHITE, Color
from textual.filter import LineFilter, NoColor

CONTRAST = 4.5
"""Minimum contrast of text with what is behind it: WCAG 2.2, 1.4.3."""

_SHARE = 0.05

ROLES = ("primary", "secondary", "accent", "success", "warning", "error")

STYLES: dict[str, str] = {
    "cursor": "on panel",
    "cursor of focus": "bold on primary-muted",
    "hit": "bold block-cursor-foreground on warning",
    "comment": "italic text-muted",
    "location": "text-muted",
    "string": "text-success",
    "value": "text-accent",
    "operation": "bold text-primary",
    "type": "text-secondary",
    "literal": "text-warning",
    "label": "bold text-secondary",
}
"""Styles of parts of a view, and of kinds of text: attributes of Rich, and colours of a theme."""

WITHOUT_COLOR: dict[str, str] = {
    "cursor": "underline",
    "cursor of focus": "bold reverse",
    "hit": "bold reverse underline",
}
"""Styles where colours are not allowed."""


class ThemedApp(App[None]):
    """App whose texts are readable in every theme."""

    def get_line_filters(self) -> Sequence[LineFilter]:
        # Textual has shades of grey for NO_COLOR.
        return [NoColor()] if self.no_color else super().get_line_filters()

    def get_css_variables(self) -> dict[str, str]:
        self._styles_known: dict[str, Style] = {}
        self._colors = readable(super().get_css_variables())
        return self._colors

    def style_named(self, name: str) -> Style:
        """Return a style of `STYLES`, or one that is written like them."""
        found = self._styles_known.get(name)
        if found is None:
            written = (WITHOUT_COLOR.get(name) if self.no_color else None) or STYLES.get(name, name)
            words = (
                Color.parse(self._colors[word]).rich_color.name if word in self._colors else word
                for word in written.split()
            )
            found = self._styles_known[name] = Style.parse(" ".join(words))
        return found


def readable(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a theme with text that is readable on each of our backgrounds.

    These are the panes, dialogs (`surface`), the line under the cursor (`primary-muted`, and
    `panel` where the pane has no focus), and hits (`warning`, with `block-cursor-foreground`).
    """
    back, front = (Color.parse(variables[name]) for name in ("background", "foreground"))
    primary, surface = (Color.parse(variables[name]) for name in ("primary", "surface"))
    behind = {
        "background": back,
        "surface": surface,
        "panel": back.blend(front, 0.08),
        "primary-muted": back.blend(primary, 0.28),
    }
    found = {name: color.hex6 for name, color in behind.items()}
    shades = list(behind.values())
    for role in ROLES:
        color = Color.parse(variables[role])
        found[f"text-{role}"] = _until_readable(color, shades).hex6
    found["foreground"] = found["text"] = _until_readable(front, shades).hex6
    found["text-muted"] = _until_readable(back.blend(front, 0.5), shades).hex6
    found["block-cursor-foreground"] = _opposite(Color.parse(variables["warning"])).hex6
    found["border-blurred"] = back.blend(front, 0.25).hex6
    return {**variables, **found}


def contrast(a: Color, b: Color) -> float:
    """Return the contrast of two opaque colours, from 1 to 21."""
    low, high = sorted((_luminance(a), _luminance(b)))
    return (high + 0.05) / (low + 0.05)


@functools.cache
def _luminance(color: Color) -> float:
    linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color.normalized)
    return sum(map(float.__mul__, (0.2126, 0.7152, 0.0722), linear))


def _opposite(*behind: Color) -> Color:
    return max(WHITE, BLACK, key=lambda color: min(contrast(color, shade) for shade in behind))


def _until_readable(color: Color, behind: list[Color]) -> Color:
    """Move a colour towards white or black until it is readable on all of these."""
    end = _opposite(*behind)
    share = 0.0
    while share < 1 and min(contrast(color.blend(end, share), b) for b in behind) < CONTRAST:
        share += _SHARE
    return color.blend(end, min(share, 1.0))
