"""Make the pictures of the terminal UI in `docs/assets/`: `python docs/screenshots.py`.

The app runs in Textual's own driver, on a dump made for it.
"""

from __future__ import annotations

import asyncio
import re
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


def _dump(kernel: str, dumps: Path) -> None:
    command = [Path(sys.executable).with_name("pallas-debug"), "dump", kernel]
    subprocess.run([*command, "--to", str(dumps), "--target", "v5e,v6e"], check=True)


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


if __name__ == "__main__":
    main()
