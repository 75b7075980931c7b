"""Make the pictures in `docs/assets/`: `python docs/screenshots.py`.

The terminal UI runs in Textual's own driver, and the report in Chromium, on a dump made for them.
The picture of a sweep is drawn from its results.
"""

from __future__ import annotations

import asyncio
import html
import itertools
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pallas_debug.tui.app import BrowseApp
from pallas_debug.tui.model.browser import Browser

ASSETS = Path(__file__).parent / "assets"
_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""Fonts that the picture would fetch from the network; a reader has a monospaced one."""

_FILE = re.compile(r"^<!-- file: (\S+) -->\n```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""Files of the README."""

PICTURES = {
    "browse": ((120, 30), ("right_square_bracket", "tab", "tab", *"jjjjjjjjjjj")),
    "browse-source": (
        (120, 36),
        ("o", *["right_square_bracket"] * 3, "tab", "tab", "slash", *"load", "enter", "n"),
    ),
    "browse-diff": (
        (160, 30),
        (*["right_square_bracket"] * 4, "d", "tab", "tab", "z"),
    ),
    "browse-search": ((120, 30), ("right_square_bracket", "slash", *"vector", "enter", "n")),
}
"""Columns, rows and pressed keys of each picture."""


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        dumps = Path(scratch) / "dumps"
        for name in ("flash_attention", "softmax"):
            _dump(f"pallas_debug_kernels:{name}", dumps)
        for name, (size, keys) in PICTURES.items():
            picture = asyncio.run(_picture(dumps, size, keys))
            (ASSETS / f"{name}.svg").write_text(_FONT.sub("", picture))
        picture = asyncio.run(_debugger())
        (ASSETS / "debugger.svg").write_text(_FONT.sub("", picture))
        _report(dumps, Path(scratch))
        (ASSETS / "sweep.svg").write_text(_sweep(Path(scratch)))


SWEPT = "pallas_debug_kernels:flash_attention"
SPEC = "bf16_4k_causal"
SIZES = (128, 256, 512, 1024)
"""Block sizes of the sweep, for both of its axes."""

CELL = (104, 46)
"""Width and height of a setting in the picture of the sweep."""


def _sweep(scratch: Path) -> str:
    """Cycles of each setting of a sweep over two block sizes, by target."""
    targets = ("v5e", "v6e")
    values = ",".join(map(str, SIZES))
    command = [_installed("pallas-debug"), "sweep", SWEPT, "--spec", SPEC, "--json"]
    command += ["--over", f"block_q={values}", "--over", f"block_k={values}"]
    command += ["--target", ",".join(targets), "--to", str(scratch / "swept")]
    found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    width, height = CELL
    panel = 90 + width * len(SIZES)
    parts = []
    for n, target in enumerate(targets):
        results = [r for r in found["results"] if r["target"] == target]
        best = min(r["cycles"]["value"] for r in results if r["failure"] is None)
        left = n * panel + 80
        middle = left + width * len(SIZES) / 2
        parts.append(_label(middle, 22, f"{target}: cycles, spills", "name"))
        parts.append(_label(middle, 42, "block_k", "text"))
        for i, size in enumerate(SIZES):
            parts.append(_label(left + width * (i + 0.5), 60, str(size), "text"))
            parts.append(_label(left - 26, 68 + height * (i + 0.6), str(size), "text"))
        parts.append(_label(left - 30, 60, "block_q", "text"))
        for i, j in itertools.product(range(len(SIZES)), repeat=2):
            setting = {"block_q": str(SIZES[i]), "block_k": str(SIZES[j])}
            (result,) = (r for r in results if r["setting"] == setting)
            parts.append(_cell(result, best, left + width * j, 68 + height * i))
    size = (2 * panel, 76 + height * len(SIZES))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" role="img" '
        'font-family="ui-sans-serif, system-ui, sans-serif" font-size="13">\n'
        "  <title>Cycles of flash attention by block sizes</title>\n"
        "  <style>text { text-anchor: middle; } .name { font-weight: 600; fill: #263238; } "
        ".text { fill: #546e7a; } .small { font-size: 11px; }</style>\n"
        f'  <rect width="{size[0]}" height="{size[1]}" fill="#ffffff"/>\n'
        + "".join(parts)
        + "</svg>\n"
    )


def _cell(result: dict[str, Any], best: float, x: float, y: float) -> str:
    """A setting: the darker, the more cycles it takes; the best one is framed."""
    width, height = CELL
    cycles = result["cycles"]["value"]
    if result["failure"] is not None or cycles is None:
        lines, shade, ratio = ("does not", "compile"), "#cfd8dc", 0.0
    else:
        ratio = cycles / best
        light = 94 - 50 * min((ratio - 1) / 2, 1)
        shade = f"hsl(200 45% {light:.0f}%)"
        lines = (f"{cycles:,}", f"{result['spills']['value']:,} spills")
    text = "#ffffff" if ratio > 2.5 else "#263238"
    frame = ' stroke="#d84315" stroke-width="3"' if ratio == 1 else ""
    middle = x + width / 2
    return (
        f'  <rect x="{x + 2}" y="{y + 2}" width="{width - 4}" height="{height - 4}" rx="4" '
        f'fill="{shade}"{frame}/>\n'
        f'  <text x="{middle}" y="{y + 21}" fill="{text}">{lines[0]}</text>\n'
        f'  <text x="{middle}" y="{y + 36}" fill="{text}" class="small">{lines[1]}</text>\n'
    )


def _label(x: float, y: float, text: str, kind: str) -> str:
    return f'  <text x="{x}" y="{y:.0f}" class="{kind}">{html.escape(text)}</text>\n'


def _report(dumps: Path, scratch: Path) -> None:
    """Pictures of the report: the overview, with the README's kernels, and a kernel."""
    from selenium import webdriver

    for name, text in _FILE.findall(ASSETS.parents[1].joinpath("README.md").read_text()):
        (scratch / name).write_text(text)
    target = ("--target", "v5e,v6e")
    for words in (
        ("verify", "rows:shift", "--arg", "f32[16,128]", "--to", str(dumps), *target),
        ("dump", "split:split", "--arg", "f32[128,128]", "--to", str(dumps), *target),
    ):
        # Both exit with 1, as something is found, or fails.
        subprocess.run([_installed("pallas-debug"), *words], cwd=scratch, capture_output=True)
    page = scratch / "report.html"
    subprocess.run([_installed("pallas-debug"), "report", str(dumps), "-o", str(page)], check=True)
    options = webdriver.ChromeOptions()
    still = "--force-prefers-reduced-motion"  # else the page still scrolls
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", still):
        options.add_argument(flag)
    options.binary_location = shutil.which("chromium") or ""
    service = webdriver.ChromeService(shutil.which("chromedriver"))  # else it looks for one online
    driver = webdriver.Chrome(options, service)
    driver.implicitly_wait(60)
    try:
        driver.set_window_size(1280, 1180)
        driver.get(page.as_uri())
        driver.find_element("css selector", "#overview.pd-current")
        driver.get_screenshot_as_file(str(ASSETS / "report-verdict.png"))
        driver.set_window_size(1280, 1900)
        driver.get(f"{page.as_uri()}#k0/t0/bundles/l{_line(dumps, 'p = jnp.exp2(')}")
        driver.find_element("css selector", ".pd-current .pd-text .pd-linked")
        driver.execute_script("scrollTo(0, 0)")
        driver.get_screenshot_as_file(str(ASSETS / "report.png"))
    finally:
        driver.quit()


def _line(dumps: Path, text: str) -> int:
    """The line of flash attention's source that begins with a text."""
    (source,) = dumps.glob("flash_attention-*/source.py")
    lines = source.read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if line.lstrip().startswith(text))


def _dump(kernel: str, dumps: Path) -> None:
    _run("dump", kernel, "--to", str(dumps), "--target", "v5e,v6e")


def _run(*words: str) -> None:
    subprocess.run([_installed("pallas-debug"), *words], check=True)


def _installed(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


async def _picture(dumps: Path, size: tuple[int, int], keys: tuple[str, ...]) -> str:
    app = BrowseApp(Browser(dumps))
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        for key in keys:
            await pilot.press(key)
            await pilot.pause()
        await app.workers.wait_for_complete()  # counts in the background
        await pilot.pause()
        return app.export_screenshot()


async def _debugger() -> str:
    """A line of flash attention's online softmax on the diagonal, with the numbers of `p`."""
    import inspect

    import jax
    from pallas_debug_kernels import flash_attention
    from pallas_debug_kernels.ops.flash_attention import kernel

    from pallas_debug import stepper
    from pallas_debug.tui.debugger import DebuggerApp

    q, k, v = (jax.random.normal(jax.random.key(i), (1, 2, 512, 64)) for i in range(3))
    session = stepper.capture(
        lambda: flash_attention(q, k, v, causal=True, block_q=128, block_k=128)
    ).session
    lines = inspect.getsource(kernel).split("\n")
    stop = next(n for n, text in enumerate(lines, 1) if "m_ref[...] = m_next" in text)
    app = DebuggerApp(session)
    async with app.run_test(size=(120, 36)) as pilot:
        condition = f"break {stop} if j == 1 and k == 1 and l == 1"
        line = ["space" if letter == " " else letter for letter in condition]
        for keys in (("colon", *line, "enter"), ("c",), ("tab", "G", "k")):
            await pilot.press(*keys)
            await app.workers.wait_for_complete()
            await pilot.pause()
        return app.export_screenshot(title="pallas-debug step")


if __name__ == "__main__":
    main()
