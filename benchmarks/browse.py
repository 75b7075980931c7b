"""Waiting times and memory of the terminal UI, compared with the usual tools.

    python benchmarks/browse.py [--dir DIR]

The installed command runs in a pseudo-terminal; a time ends when the bytes that draw the expected
text have been read from it. Inputs are created in a temporary directory, or in DIR, where they are
kept for the next run: 10,000 kernels of 20 files each, in our format and in libtpu's, one text of
200 MB, and dumps of splash attention by the real compiler, whose longest passes have 12,000 lines,
one of them with its LLO passes and its schedule.
Each figure has a limit; the exit code says whether all are within theirs.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import fcntl
import itertools
import os
import pty
import re
import select
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Collection
from pathlib import Path

import pallas_debug
from pallas_debug.ir.diff import diff
from pallas_debug.ir.operations import NOISE, Noise
from pallas_debug.model import Compilation, Failure, Kernel, Pass
from pallas_debug.store import schema
from pallas_debug.tui.model.browser import Browser, TextPlace
from pallas_debug.tui.model.search import DumpSearch

COMMAND = Path(sys.executable).with_name("pallas-debug")
KERNELS, FILES = 10_000, 20
SIZE = 200_000_000
SECONDS = 60.0
TIMES = 5
_NOISE = r"s/ loc\(.*//; s/%[A-Za-z0-9_$.-]+/%/g; /^#loc/d"
"""Removes locations and the names of values from a text."""
READY = r"\?(\x1b\[[\d;]*m)* help"
"""Part of the bottom line, drawn once the program handles keys."""


class Terminal:
    """The command in a terminal of 160 by 48."""

    def __init__(self, *arguments: object) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 48, 160, 0, 0))
        self.began = time.perf_counter()
        self._process = subprocess.Popen(
            [COMMAND, *map(str, arguments)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm-256color"},
            start_new_session=True,
        )
        os.close(theirs)
        self._seen = b""

    def wait(self, pattern: str) -> float:
        """Read until a pattern was written since the last `send`. Returns the time.

        Raises:
          TimeoutError: it was not.
        """
        sought = re.compile(pattern.encode(), re.DOTALL)
        end = time.perf_counter() + SECONDS
        while not sought.search(self._seen):
            left = end - time.perf_counter()
            if left <= 0:
                raise TimeoutError(f"{pattern!r} never came: {self._seen[-500:]!r}")
            if select.select([self._ours], [], [], left)[0]:
                self._seen += os.read(self._ours, 1 << 20)
        return time.perf_counter()

    def send(self, keys: str) -> float:
        """Press keys. Returns the time."""
        self.drain()
        self._seen = b""
        sent = time.perf_counter()
        os.write(self._ours, keys.encode())
        return sent

    def drain(self, seconds: float = 0.0) -> None:
        """Read all output, for a while."""
        end = time.perf_counter() + seconds
        while select.select([self._ours], [], [], max(end - time.perf_counter(), 0))[0]:
            self._seen += os.read(self._ours, 1 << 20)

    def peak(self) -> float:
        """Return the peak memory in bytes."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        return int(found[1]) * 1024 if found else 0.0

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._ours)


class Table:
    """Figures and their limits."""

    def __init__(self) -> None:
        self.kept = True

    def row(self, what: str, value: float, limit: float, unit: str, beside: str = "") -> None:
        kept = value <= limit
        self.kept = self.kept and kept
        mark = "ok" if kept else "OVER"
        print(f"{what:52} {value:9.2f} {unit:3} of {limit:6.1f}  {mark:5} {beside}", flush=True)


# Inputs.


def once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Create a folder completely, unless it exists."""
    if not folder.exists():
        made = folder.with_suffix(".part")
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        make(made)
        made.rename(folder)
    return folder


def kernels(made: Path) -> None:
    """10,000 kernels of 20 files; a tenth of them failed."""
    text = b"module {\n" + b"  %0 = arith.constant 0 : i32\n" * 40 + b"}\n"
    kinds = []
    for status in ("ok", "failed"):
        files: dict[str, bytes] = {
            f"v5e/passes/{n:02d}-pass-{n}.mlir": text + b"\n" * n for n in range(FILES - 6)
        }
        passes = tuple(
            Pass(
                number=n,
                name=f"pass-{n}",
                size=len(text) + n,
                seconds=0.001,
                changed=True,
                file=f"passes/{n:02d}-pass-{n}.mlir",
            )
            for n in range(FILES - 6)
        )
        failure = Failure(stage="compile", type="Error", message="refused", last_pass="pass-13")
        compilation = Compilation(
            kernel="kernel",
            target="v5e",
            status="ok" if status == "ok" else "failed",
            key="",
            passes=passes,
            failure=failure if status == "failed" else None,
        )
        kernel = Kernel(name="kernel", digest="", primitive="pallas_call", grid=(4, 2))
        files |= {
            "kernel.json": schema.encode(kernel),
            "jaxpr.txt": b"once in each kernel\n" + text,
            "source.py": b"def kernel():\n    pass\n",
            "v5e/stablehlo.mlir": text,
            "v5e/mosaic.mlir": text,
            "v5e/compilation.json": schema.encode(compilation),
        }
        template = made / f".{status}"
        for name, data in files.items():
            (template / name).parent.mkdir(parents=True, exist_ok=True)
            (template / name).write_bytes(data)
        kinds.append((template, list(files)))
    for number in range(KERNELS):
        template, names = kinds[number % 10 == 9]
        target = made / f"kernel_{number:05d}-{number:08x}"
        (target / "v5e" / "passes").mkdir(parents=True)
        for name in names:
            (target / name).hardlink_to(template / name)


def raw_dumps(made: Path) -> None:
    """The same number of files in libtpu's format, in one directory."""
    passes = ["original", *(f"post-pass-{n}" for n in range(FILES - 2)), "post-finalize-llo"]
    for number in range(KERNELS):
        source = made / f"{number // 1000}.txt"  # file systems limit the number of links
        if not source.exists():
            source.write_text("module {\n  func.func @main() {\n  }\n}\n")
        for n, name in enumerate(passes, 1):
            file = f"{1795185118 + number}000000000-{n:04d}-mosaic-dump-kernel_{number:05d}-{name}"
            (made / f"{file}.txt").hardlink_to(source)


def dumped(root: Path, name: str = "splash", stages: str = "mosaic") -> Path:
    """Splash attention by the real compiler."""
    folder = root / name
    if not folder.exists():
        kernel = ["pallas_debug_kernels:splash_attention", "--spec", "bf16_4k_causal"]
        command = [COMMAND, "dump", *kernel, "--to", folder, "--stages", stages]
        subprocess.run(command, check=True, stdout=sys.stderr, stderr=sys.stderr)
    return folder


def huge(root: Path, passes: list[Path]) -> Path:
    """One text of 200 MB."""
    path = root / "huge" / "huge.mlir"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        data = b"".join(p.read_bytes() for p in sorted(passes, key=lambda p: p.stat().st_size)[-3:])
        with path.open("wb") as file:
            while file.tell() < SIZE:
                file.write(data)
    return path


def copies(made: Path, passes: list[Path]) -> None:
    """200 MB of passes: those of one dump, repeated."""
    size = number = 0
    while size < SIZE:
        inner = made / f"kernel-{number:08x}" / "v5e" / "passes"
        inner.mkdir(parents=True)
        for i, path in enumerate(passes):
            (inner / f"{i:02d}-pass.mlir").hardlink_to(path)
            size += path.stat().st_size
        number += 1


# Measurements.


def first_screen(table: Table, what: str, path: Path, pattern: str) -> None:
    def once() -> float:
        with Terminal("browse", path) as terminal:
            return terminal.wait(pattern) - terminal.began

    def answering() -> float:
        with Terminal("browse", path) as terminal:
            return terminal.wait(READY) - terminal.began

    found = sorted(once() for _ in range(TIMES))
    ready = min(answering() for _ in range(TIMES))
    python = best(lambda: subprocess.run([sys.executable, "-c", "import textual.app"], check=True))
    beside = (
        f"worst {found[-1]:.2f}; answers keys after {ready:.2f}, of which importing Textual alone "
        f"is {python:.2f}"
    )
    table.row(f"first screen, {what}", found[0], 0.5, "s", beside)


def keys(table: Table, root: Path) -> None:
    """Time from a key to the next kernel's name in the title, idle and with busy workers."""
    with Terminal("browse", root) as terminal:
        terminal.wait(READY)
        terminal.drain(1.5)
        moves(table, "a key, at rest", terminal)
        for typed in ("ffailed", "\r", "\x1b", "g"):
            terminal.send(typed)
            terminal.drain(0.2)
        moves(table, "a key, while 10,000 kernels are read", terminal)
    with Terminal("browse", root) as terminal:
        terminal.wait(READY)
        terminal.drain(1.5)
        terminal.send("\x07")
        terminal.wait("search in 10,000 kernels")
        terminal.send("nowhere|once")
        terminal.wait(r"[1-9][\d,]* in [\d,]+ texts")  # enter opens the first hit
        terminal.send("\r")
        terminal.drain(0.3)
        for typed in ("\x1b[Z", "\x1b[Z", "g"):
            terminal.send(typed)
            terminal.drain(0.2)
        moves(table, "a key, while 200,000 files are searched", terminal)
        terminal.send("\x07")
        terminal.wait(r"searching")


def moves(table: Table, what: str, terminal: Terminal) -> None:
    """Time 20 steps down the list of kernels."""
    times = []
    for number in range(1, 21):
        sent = terminal.send("j")
        seen = terminal.wait(rf"kernel_{number:05d}")
        times.append((seen - sent) * 1000)
        terminal.drain(0.03)
    table.row(what, max(times), 50, "ms", f"median {statistics.median(times):.1f} ms of 20")


def opening(table: Table, root: Path) -> tuple[Path, Path]:
    """Time `]` to a pass of 12,000 lines. Returns the files of the previous pass and of it."""
    browser = Browser(root)
    longest = (0, "", "", "", Path(), Path())
    for entry in browser.entries:
        target = browser.target(entry, None)
        steps = [step for step in browser.steps(entry, target) if step.pass_]
        for before, step in itertools.pairwise(steps):
            places = [TextPlace(entry=entry, target=target, step=s) for s in (before, step)]
            old, new = map(browser.path, places)
            lines = new.read_bytes().count(b"\n")
            if step.changed and lines > longest[0]:
                longest = (lines, entry.name, before.label, step.label, old, new)
    lines, kernel, before_label, label, old, new = longest
    times = []
    for _ in range(TIMES):
        options = ("--kernel", kernel, "--pass", before_label)
        with Terminal("browse", root, *options) as terminal:
            terminal.wait(rf"\x1b\[1;\d+H[^\n]*{before_label}")
            terminal.drain(1.5)
            sent = terminal.send("]")
            times.append((terminal.wait(rf"\x1b\[1;\d+H[^\n]*{label}") - sent) * 1000)
    table.row(
        f"opening a pass of {lines:,} lines", min(times), 100, "ms", f"worst {max(times):.0f}"
    )
    return old, new


def comparing(table: Table, old: Path, new: Path) -> None:
    def ours(ignore: Collection[Noise]) -> Callable[[], object]:
        def run() -> int:
            a, b = (path.read_text().split("\n") for path in (old, new))
            return sum(1 for _ in diff(a, b, ignore=ignore).unified("a", "b"))

        return run

    def without_names_and_locations() -> None:
        """Remove noise with `sed`, then compare with `git diff`."""
        with tempfile.TemporaryDirectory() as folder:
            plain = []
            for path in (old, new):
                plain.append(Path(folder) / path.name)
                with plain[-1].open("wb") as file:
                    subprocess.run(["sed", "-E", _NOISE, path], stdout=file, check=True)
            tool("git", "diff", "--no-index", *plain)()

    git = best(tool("git", "diff", "--no-index", old, new))
    took = best(ours(()))
    beside = f"{took * 1000:.0f} ms; git diff --no-index {git * 1000:.0f} ms"
    table.row("a diff of such passes", took / git, 1.5, "x", beside)
    took, same = best(ours(NOISE)), best(without_names_and_locations)
    beside = f"{took * 1000:.0f} ms; with sed before git diff {same * 1000:.0f} ms"
    table.row("a diff of such passes without noise", took / same, 1.5, "x", beside)


def searching(table: Table, root: Path) -> None:
    """Time a search by the terminal UI over 200 MB of passes, which ends once its list is full."""
    browser = Browser(root)
    files = [text.path for entry in browser.entries for text in browser.texts(entry)]
    for pattern, flag in (
        ("vector_load", "-F"),
        ("nothing_here", "-F"),
        (r"llo\.v(add|sub)", "-E"),
    ):
        search = DumpSearch(browser)

        def ours(pattern: str = pattern, search: DumpSearch = search) -> None:
            search.begin(pattern, browser.entries[0])(lambda: False)

        grep = best(tool("grep", "-ci", flag, pattern, *files))  # ignores case
        took = best(ours)
        beside = f"{took * 1000:.0f} ms; grep -ci {grep * 1000:.0f} ms; {search.status}"
        table.row(f"200 MB searched for {pattern}", took / grep, 2, "x", beside)


def memory(table: Table, path: Path) -> None:
    """Memory for a text of 200 MB, shown from its first line to its last and searched."""
    with Terminal("browse", path) as terminal:
        terminal.wait(READY)
        terminal.drain(1.0)
        terminal.send("G")
        terminal.drain(3.0)
        terminal.send("/vector_load\r")
        terminal.drain(3.0)
        table.row("memory with a text of 200 MB", terminal.peak() / 1e6, 300, "MB")


def kernels_memory(table: Table, root: Path) -> None:
    with Terminal("browse", root) as terminal:
        terminal.wait(READY)
        for typed in ("ffailed", "\r"):
            terminal.send(typed)
            terminal.drain(0.2)
        terminal.wait(r"1,000/10,000 failed(?! +reading)")
        table.row("memory with 10,000 kernels read", terminal.peak() / 1e6, 300, "MB")


def best(function: Callable[[], object], times: int = TIMES) -> float:
    found = []
    for _ in range(times):
        start = time.perf_counter()
        function()
        found.append(time.perf_counter() - start)
    return min(found)


def tool(*arguments: object) -> Callable[[], object]:
    return lambda: subprocess.run(list(map(str, arguments)), stdout=subprocess.PIPE, check=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dir", type=Path, help="where inputs are created and kept")
    chosen = parser.parse_args().dir
    table = Table()
    # As installed: without bytecode, a start compiles a hundred modules, a fifth of its CPU time.
    compileall.compile_dir(Path(pallas_debug.__file__).parent, quiet=1)
    with tempfile.TemporaryDirectory() as temporary:
        root = (chosen or Path(temporary)).absolute()
        root.mkdir(parents=True, exist_ok=True)
        many, raw = once(root / "kernels", kernels), once(root / "raw", raw_dumps)
        splash, staged = dumped(root), dumped(root, "stages", "llo,bundles")
        passes = sorted(splash.glob("*/*/passes/*"))
        text = huge(root, passes)
        searched = once(root / "searched", lambda made: copies(made, passes))
        first_screen(table, "10,000 kernels", many, "kernel_00005")
        first_screen(table, "200,000 files of libtpu", raw, "kernel_00005")
        first_screen(table, "a kernel with all stages", staged, "splash_attention")
        first_screen(table, "one text of 200 MB", text, r"\x1b\[2;[^\n]*module|#loc|func")
        keys(table, many)
        kernels_memory(table, many)
        comparing(table, *opening(table, splash))
        searching(table, searched)
        memory(table, text)
    return 0 if table.kept else 1


if __name__ == "__main__":
    sys.exit(main())
