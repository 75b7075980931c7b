"""Make the pictures in `docs/assets/`: `python docs/screenshots.py`.

The terminal UI runs in Textual's own driver, and the report in Chromium, on a dump made for them.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pallas_debug.tui.app import BrowseApp
from pallas_debug.tui.model.browser import Browser

ASSETS = Path(__file__).parent / "assets"
_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""Fonts that the picture would fetch from the network; a reader has a monospaced one."""

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


def _report(dumps: Path, scratch: Path) -> None:
    """Pictures of the report: a kernel, and the walk through its grid."""
    from selenium import webdriver

    page = scratch / "report.html"
    _run("report", str(dumps), "-o", str(page))
    options = webdriver.ChromeOptions()
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(flag)
    options.binary_location = shutil.which("chromium") or ""
    service = webdriver.ChromeService(shutil.which("chromedriver"))  # else it looks for one online
    driver = webdriver.Chrome(options, service)
    try:
        driver.set_window_size(1280, 1180)
        driver.get(f"{page.as_uri()}#k0/t0/bundles/l{_line(dumps, 'p = jnp.exp2(')}")
        driver.implicitly_wait(60)
        driver.find_element("css selector", ".pd-current .pd-text .pd-linked")
        driver.execute_script("scrollTo(0, 0)")
        driver.get_screenshot_as_file(str(ASSETS / "report.png"))
        driver.find_element("css selector", ".pd-current .pd-blocks").screenshot(
            str(ASSETS / "report-blocks.png")
        )
    finally:
        driver.quit()


def _line(dumps: Path, text: str) -> int:
    """The line of flash attention's source that begins with a text."""
    (source,) = dumps.glob("flash_attention-*/source.py")
    lines = source.read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if line.lstrip().startswith(text))


def _dump(kernel: str, dumps: Path) -> None:
    _run("dump", kernel, "--to", str(dumps), "--target", "v5e,v6e", "--stages", "bundles")


def _run(*words: str) -> None:
    command = [Path(sys.executable).with_name("pallas-debug"), *words]
    subprocess.run(command, check=True)


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
    """A line of flash attention's online softmax on the diagonal, with the heat map of `p`."""
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
