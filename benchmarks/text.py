"""Opening, comparing and searching compiler text, compared with the usual tools in one run.

    python benchmarks/text.py

Texts come from a real dump of splash attention; what is searched is repeated to 200 MB. Each
figure is the best of five; the ratio is ours to the tool's. The figures of the text pane are from
one run without a terminal. Nothing is asserted.
"""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from textual.app import ComposeResult

from pallas_debug.ir import search
from pallas_debug.ir.diff import diff
from pallas_debug.ir.operations import NOISE, Module
from pallas_debug.tui.panes.text import TextPane
from pallas_debug.tui.theme import ThemedApp

SIZE = 200_000_000
PATTERNS = (("vector_load", "-F"), ("nothing_here", "-F"), (r"llo\.v(add|sub)\.f32", "-E"))


def best(function: Callable[[], object], times: int = 5) -> float:
    found = []
    for _ in range(times):
        start = time.perf_counter()
        function()
        found.append(time.perf_counter() - start)
    return min(found)


def tool(*arguments: object) -> Callable[[], object]:
    return lambda: subprocess.run(list(map(str, arguments)), stdout=subprocess.PIPE, check=False)


def row(what: str, ours: float, other: str = "", theirs: float | None = None) -> None:
    ratio = "" if theirs is None else f"{ours / theirs:8.2f}"
    against = "" if theirs is None else f"{theirs * 1000:9.1f} ms  {other}"
    print(f"{what:44} {ours * 1000:9.1f} ms {ratio:8} {against}")


def dumped(root: Path) -> list[Path]:
    command = Path(sys.executable).with_name("pallas-debug")
    kernel = ["pallas_debug_kernels:splash_attention", "--spec", "bf16_4k_causal"]
    subprocess.run([command, "dump", *kernel, "--to", root], check=True, stderr=subprocess.DEVNULL)
    return sorted(root.glob("*/v5e/passes/*"))


def lines_of(path: Path) -> list[str]:
    return path.read_text().split("\n")


def opening(path: Path) -> None:
    def everything() -> None:
        module = Module.of(path.read_text())
        _ = (module.counts, module.regions, module.chains, module.uses("%0", 3))

    row(f"open, {path.name}: lines", best(lambda: lines_of(path)))
    row("  with all tables", best(everything))


def comparing(a: Path, b: Path) -> None:
    def ours(ignore: tuple[str, ...]) -> Callable[[], object]:
        def run() -> int:
            old, new = map(lines_of, (a, b))
            return sum(1 for _ in diff(old, new, ignore=ignore).unified("a", "b"))  # type: ignore[arg-type]

        return run

    git = best(tool("git", "diff", "--no-index", a, b))
    row(f"diff {a.stem[:18]} {b.stem[:18]}", best(ours(())), "git diff --no-index", git)
    row("  without noise", best(ours(NOISE)), "git diff --no-index", git)


def searching(path: Path) -> None:
    for pattern, flag in PATTERNS:
        query = search.Query(text=pattern, literal=flag == "-F")
        grep = best(tool("grep", "-c", flag, pattern, path))
        found = best(lambda q=query: sum(1 for _ in search.search([path], q)))  # type: ignore[misc]
        row(f"hits of {pattern}", found, "grep -c", grep)


class Pane(ThemedApp):
    def compose(self) -> ComposeResult:
        yield TextPane(id="text")


async def drawing(path: Path) -> None:
    """The pane at 160 columns: until a text is drawn, and a line down."""
    app = Pane()
    async with app.run_test(size=(160, 48)) as pilot:
        pane = app.query_one(TextPane)

        async def drawn(act: Callable[[], object]) -> float:
            start = time.perf_counter()
            act()
            pane.refresh()
            pane.render_lines(pane.size.region)  # as the compositor does
            return time.perf_counter() - start

        lines = lines_of(path)
        row(f"pane, {path.name}: drawn", await drawn(lambda: pane.show(lines)))
        row("  a line down", await drawn(lambda: pane.action_move(1)))
        start = time.perf_counter()
        while not pane.linked:
            await pilot.pause(0.01)
        row("  values, regions and Python lines known", time.perf_counter() - start)
        row("  searched", await drawn(lambda: pane.search("nothing_here")))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{'memory of all of this at most':44} {peak:9.0f} MB")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        passes = dumped(Path(folder) / "dumps")
        large = sorted(passes, key=lambda p: p.stat().st_size)[-3:]
        longest = max(passes, key=lambda p: p.read_bytes().count(b"\n"))
        opening(longest)
        position = passes.index(longest)
        comparing(passes[position], passes[position + 1])
        comparing(passes[position - 1], passes[position])
        huge = Path(folder) / "huge.mlir"
        data = b"".join(p.read_bytes() for p in large)
        with huge.open("wb") as file:
            while file.tell() < SIZE:
                file.write(data)
        asyncio.run(drawing(longest))
        searching(huge)


if __name__ == "__main__":
    main()
