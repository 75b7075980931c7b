"""Names for screen readers, contrast, narrow widths and reduced motion, as Chromium computes them."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from pages import Browser, Write, kernel_id

CONTROLS = {"button", "link", "textbox", "searchbox", "combobox", "checkbox", "slider", "listbox"}
VIEWS = ("overview", "double", "running")
SIZES = [
    pytest.param(1280, False, id="wide-light"),
    pytest.param(1280, True, id="wide-dark", marks=pytest.mark.slow),
    pytest.param(400, False, id="narrow-light", marks=pytest.mark.slow),
    pytest.param(400, True, id="narrow-dark"),
]

# Contrast of every visible text with what is behind it, as WCAG 2 defines it.
CONTRAST = """
  const context = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const known = new Map();
  const parsed = (color) => {
    if (!known.has(color)) {
      context.clearRect(0, 0, 1, 1);
      context.fillStyle = color;
      context.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
      known.set(color, [r, g, b, a / 255]);
    }
    return known.get(color);
  };
  const over = ([r, g, b, a], under) =>
    [...[r, g, b].map((c, n) => c * a + under[n] * (1 - a)), 1];
  const luminance = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((c) => {
      c /= 255;
      return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const colours = new Map([[null, [255, 255, 255, 1]]]);
  const behind = (node) => {
    if (!colours.has(node)) {
      const layer = parsed(getComputedStyle(node).backgroundColor);
      colours.set(node, over(layer, behind(node.parentElement)));
    }
    return colours.get(node);
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !node.checkVisibility?.() || node.closest('svg, option, [hidden]')) continue;
    seen++;
    const style = getComputedStyle(node);
    const under = behind(node);
    const [a, b] = [luminance(over(parsed(style.color), under)), luminance(under)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push(`${ratio.toFixed(2)} ${node.className || node.tagName} ${node.textContent.slice(0, 40)}`);
  }
  return [seen, [...new Set(found)]];
"""

OVERFLOWING = """
  const limit = document.documentElement.clientWidth;
  const scrolls = (node) => {
    for (let n = node.parentElement; n; n = n.parentElement) {
      if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(n).overflowX)) return true;
    }
    return false;
  };
  return [...document.querySelectorAll('main *, header *')]
    .filter((node) => node.checkVisibility() && node.getBoundingClientRect().right > limit + 1 && !scrolls(node))
    .map((node) => `${node.className || node.tagName} ${node.getBoundingClientRect().right}`)
    .slice(0, 5);
"""


@pytest.fixture
def page(write: Write) -> Path:
    return write()


def show(browser: Browser, page: Path, view: str, width: int, dark: bool) -> None:
    browser.open(page, width=width, dark=dark)
    if view != "overview":
        browser.open(page, kernel_id(browser, view), width=width, dark=dark)


def names(browser: Browser) -> list[tuple[str, str, dict[str, Any]]]:
    """Role, name and properties of every node of the accessibility tree."""
    browser.command("Accessibility.enable")
    found = []
    for node in browser.command("Accessibility.getFullAXTree")["nodes"]:
        if not node.get("ignored"):
            properties = {p["name"]: p["value"].get("value") for p in node.get("properties", ())}
            found.append((node["role"]["value"], node.get("name", {}).get("value", ""), properties))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS)
def test_every_control_has_a_name(browser: Browser, page: Path, view: str) -> None:
    show(browser, page, view, 1280, False)
    found = names(browser)
    controls = [(role, name) for role, name, _ in found if role in CONTROLS]
    assert len(controls) > 4
    assert [role for role, name in controls if not name.strip()] == []
    focusable = [(role, name) for role, name, p in found if p.get("focusable")]
    assert [role for role, name in focusable if not name.strip() and role != "main"] == []
    landmarks = {role for role, _, _ in found}
    assert {"banner", "main", "navigation"} <= landmarks


@pytest.mark.slow
def test_tables_and_figures_have_captions(browser: Browser, page: Path) -> None:
    show(browser, page, "double", 1280, False)
    found = names(browser)
    tables = [name for role, name, _ in found if role in ("table", "grid")]
    assert any(re.match("Passes for v5e: 10 of 19 changed something", name) for name in tables)
    assert all(tables)
    assert all(name for role, name, _ in found if role in ("img", "image", "listbox", "dialog"))
    # The accessibility tree has no order among branches; the document has.
    headings = browser.run(
        "[...document.querySelectorAll('h1, h2, h3, h4, h5, h6')]"
        ".filter(node => node.checkVisibility()).map(node => Number(node.tagName[1]))"
    )
    assert headings[0] in (1, 2)
    steps = [b - a for a, b in itertools.pairwise(headings)]
    assert max(steps) <= 1, "a level of headings is skipped"


@pytest.mark.slow
@pytest.mark.parametrize("width,dark", SIZES)
def test_contrast_and_width(browser: Browser, page: Path, width: int, dark: bool) -> None:
    for view in VIEWS:
        show(browser, page, view, width, dark)
        if view != "overview":
            browser.wait("document.querySelector('.pd-current .pd-source .pd-row')")
        seen, low = browser.run(CONTRAST)
        assert seen > 30
        assert low == []
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run(OVERFLOWING) == []


@pytest.mark.slow
def test_print_shows_all_kernels_and_no_controls(browser: Browser, page: Path) -> None:
    show(browser, page, "double", 1280, False)
    browser.command("Emulation.setEmulatedMedia", media="print")
    try:
        seen = browser.run(
            "[...document.querySelectorAll('.pd-view, .pd-top, .pd-explorer')]"
            ".filter(n => n.checkVisibility()).map(n => n.className)"
        )
    finally:
        browser.command("Emulation.setEmulatedMedia", media="")
    assert len(seen) == 4
    assert all("pd-view" in name for name in seen)


@pytest.mark.slow
def test_focus_is_visible(browser: Browser, page: Path) -> None:
    from selenium.webdriver import Keys

    show(browser, page, "double", 1280, False)
    for _ in range(12):
        browser.press(Keys.TAB)
        style, width = browser.run(
            "(s => [s.outlineStyle, parseFloat(s.outlineWidth)])(getComputedStyle(document.activeElement))"
        )
        assert style != "none"
        assert width >= 2


def test_the_state_is_never_in_the_colour_alone(browser: Browser, page: Path) -> None:
    show(browser, page, "overview", 1280, False)
    marks = browser.run(
        "[...document.querySelectorAll('.pd-matrix .pd-mark')].map(m => [m.className, m.textContent])"
    )
    signs = {(kind.split("pd-")[-1], text[0]) for kind, text in marks}
    assert signs == {("ok", "✓"), ("bad", "✕"), ("none", "–")}


def test_nothing_moves_where_motion_is_reduced(browser: Browser, page: Path) -> None:
    show(browser, page, "overview", 1280, False)
    features = [{"name": "prefers-reduced-motion", "value": "reduce"}]
    browser.command("Emulation.setEmulatedMedia", features=features)
    assert (
        browser.run("getComputedStyle(document.querySelector('.pd-button')).transitionDuration")
        == "0s"
    )
    moving = browser.run("document.getAnimations().length")
    assert moving == 0
