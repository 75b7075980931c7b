"""Run the commands shown in the README and the pages of `docs/`, and compare their output.

    python docs/commands.py [PAGE…]             show differences between pages and output
    python docs/commands.py --write [PAGE…]     update the pages

A comment above a fenced block gives its kind:

    <!-- file: softmax.py -->   a file; it is written to the page's scratch directory
    <!-- run -->                a session; its lines `$ command` are run there, in order
    <!-- run one -->            one command; later lines with a `$` are its output

Commands run on a terminal of 100 columns without colours. On a page, `…` matches any text within
a line, and a line `…` any lines. Times, sizes and counts of passes may differ, as they depend on
version and machine, and so may digests if jax is not the one that the pages were written with.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = 100
TIMEOUT = 120.0
UNSEEN = ("NO_COLOR", "FORCE_COLOR", "MFLAGS", "CI", "BUILD_NUMBER")
"""Variables that change a command's output; with the last two, pytest does not truncate lines."""

_BLOCK = re.compile(
    r"^<!-- (?P<kind>run|run one|file: (?P<name>\S+)) -->\n"
    r"(?P<fence>```\w*\n)(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)

_PROGRESS = re.compile(r"pallas-debug: [\d,]+ s: ")
"""Lines of a command that takes long, which depends on the machine."""

_TOLERANT = (
    (re.compile(r"^(\S+ +)\d\d( +\S+ +(?:changed|failed)) .*", re.MULTILINE), r"\1NN\2"),
    (re.compile(r"\b[0-9a-f]{32,64}\b"), "DIGEST"),
    (re.compile(r"\b\d{8}-\d{6}-\d+\b"), "RUN"),
    (re.compile(r"\b\d+ of \d+ passes"), "N of N passes"),
    (re.compile(r"\b\d+ passes"), "N passes"),
    (re.compile(r"\b[\d,]+ (B|bytes of generated code)\b"), r"N \1"),
    (re.compile(r"\b[\d.]+ ?m?s\b"), "T"),
    (re.compile(r" \(\d+:\d\d:\d\d\)"), ""),  # pytest adds it to times over a minute
    (re.compile(r"\b\d+(?:\.\d+){2,}\b"), "VERSION"),
    (re.compile(r"\b\d+ cores"), "N cores"),
    (re.compile(r"\bbuilt on .*ago"), "built on DATE"),
    (re.compile(r"[=_-]{4,}"), "----"),
    (re.compile(r"[ \t]+"), " "),
)


_DIGEST = re.compile(r"(?P<kernel>\b[\w.]+)-(?P<digest>[0-9a-f]{8})\b")

_WRITTEN_WITH = "0.10.2"
"""Version of jax with which the pages are written: another one prints other jaxprs."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A command, and its output on the page."""

    command: str
    shown: str


def pages() -> list[Path]:
    """Pages with commands."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if _BLOCK.search(page.read_text())]


def steps(body: str, *, one: bool = False) -> Iterator[Step]:
    """Commands of a session; a command ends at a line that does not end in a backslash."""
    command: list[str] = []
    shown: list[str] = []
    for line in body.splitlines():
        if command and command[-1].endswith("\\") and not shown:
            command.append(line)
        elif line.startswith("$ ") and not (one and command):
            if command:
                yield Step(command="\n".join(command), shown="\n".join(shown))
            command, shown = [line[2:]], []
        else:
            shown.append(line)
    if command:
        yield Step(command="\n".join(command), shown="\n".join(shown))


def differences(page: Path, scratch: Path) -> list[str]:
    """Run a page's blocks in `scratch`; return a diff for each command with other output."""
    found = []
    for block in _BLOCK.finditer(page.read_text()):
        if block["name"]:
            _write(scratch, block)
            continue
        for step, printed in _session(block, scratch):
            if not agree(step.shown, printed):
                diff = difflib.unified_diff(
                    step.shown.splitlines(), printed.splitlines(), "shown", "printed", lineterm=""
                )
                found.append("\n".join([f"{page.name}: $ {step.command}", *diff]))
    return found


def rewritten(page: Path, scratch: Path) -> str:
    """Return the page with the commands' current output, unchanged where it agrees."""

    def replaced(block: re.Match[str]) -> str:
        if block["name"]:
            _write(scratch, block)
            return block[0]
        lines = []
        for step, printed in _session(block, scratch):
            shown = _with_digests(step.shown, printed)
            shown = shown if agree(shown, printed) else printed
            lines += [f"$ {step.command}", *([shown] if shown else [])]
        return f"<!-- {block['kind']} -->\n{block['fence']}" + "\n".join(lines) + "\n```"

    return _BLOCK.sub(replaced, page.read_text())


def agree(shown: str, printed: str) -> bool:
    """Return whether the output of a command agrees with the page."""
    pattern = ""
    for line in _tolerant(shown).splitlines():
        if line == "…":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*".join(re.escape(part) for part in line.split("…")) + r"\n"
    return re.fullmatch(pattern, _tolerant(printed)) is not None


def _with_digests(shown: str, printed: str) -> str:
    """Renew the digests on a page by those of the kernels of the same name in the output."""
    digests: dict[str, set[str]] = {}
    for found in _DIGEST.finditer(printed):
        digests.setdefault(found["kernel"], set()).add(found["digest"])

    def renewed(match: re.Match[str]) -> str:
        known = digests.get(match["kernel"], set())
        return f"{match['kernel']}-{known.copy().pop()}" if len(known) == 1 else match[0]

    return _DIGEST.sub(renewed, shown)


def _tolerant(text: str) -> str:
    if metadata.version("jax") != _WRITTEN_WITH:
        text = _DIGEST.sub(r"\g<kernel>-DIGEST", text)
    for pattern, replacement in _TOLERANT:
        text = pattern.sub(replacement, text)
    lines = [line.rstrip() for line in text.strip("\n").splitlines()]
    return "".join(line + "\n" for line in lines)


def _write(scratch: Path, block: re.Match[str]) -> None:
    path = scratch / block["name"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block["body"])


def _session(block: re.Match[str], scratch: Path) -> Iterator[tuple[Step, str]]:
    """Each command of a session with its output; `$?` is the exit code of the previous one."""
    code = 0
    for step in steps(block["body"], one=block["kind"] == "run one"):
        code, printed = _run(f"(exit {code})\n{step.command}", scratch)
        yield step, printed


def _run(command: str, scratch: Path) -> tuple[int, str]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    process = subprocess.Popen(
        ["bash", "-c", command],
        cwd=scratch,
        env=_environment(scratch),
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    chunks = []
    with contextlib.suppress(OSError):  # EIO: the last writer has closed its side
        while chunk := os.read(ours, 1 << 16):
            chunks.append(chunk)
    os.close(ours)
    printed = b"".join(chunks).decode(errors="replace").replace("\r\n", "\n")
    lines = [line.rstrip() for line in printed.replace(f"{scratch}/", "").splitlines()]
    lines = [line for line in lines if not _PROGRESS.match(line)]
    return process.wait(timeout=TIMEOUT), "\n".join(lines).strip("\n")


def _environment(scratch: Path) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PALLAS_", "PYTEST_", "COV_", "LIBTPU_", "JAX_", "XLA_", "MAKE"))
        and name not in UNSEEN
    }
    return kept | {
        "PATH": f"{scratch / '.venv' / 'bin'}:{os.environ['PATH']}",
        "TERM": "dumb",
        "COLUMNS": str(COLUMNS),
        "LINES": "50",
        "HOME": str(scratch),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONWARNINGS": "",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


@contextlib.contextmanager
def scratch_directory(python: str = sys.executable) -> Iterator[Path]:
    """Directory with the project's Makefile and a virtual environment, as after `make`.

    Its commands are those of the Python that runs this; `python` is what starts it.
    """
    folder = Path(tempfile.mkdtemp(prefix="pallas-debug-docs-")).resolve()
    try:
        # The environment exists already: the Makefile has nothing to install.
        recipes = (ROOT / "Makefile").read_text()
        (folder / "Makefile").write_text(
            recipes.replace(".installed: pyproject.toml", ".installed:")
        )
        commands = folder / ".venv" / "bin"
        commands.mkdir(parents=True)
        for name, otherwise in {
            "python": "",
            "pallas-debug": "-c 'from pallas_debug.cli import main; main()'",
            "pytest": "-m pytest",
            "pip": "-m pip",
        }.items():
            installed = Path(sys.executable).with_name(name)
            is_there = name != "python" and installed.exists()
            start = f'"{python}" "{installed}"' if is_there else f'"{python}" {otherwise}'
            if name == "pytest" and not _plugin_is_installed():
                start += " -p pallas_debug_pytest"
            (commands / name).write_text(f'#!/bin/sh\nexec {start} "$@"\n')
            (commands / name).chmod(0o755)
        (folder / ".venv" / ".installed").touch()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _plugin_is_installed() -> bool:
    """Return whether pytest finds the plugin itself, without the sources on the path."""
    return bool(metadata.entry_points(group="pytest11", name="pallas_debug_pytest"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--write", action="store_true", help="update the pages")
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="default: all")
    given = parser.parse_args()
    code = 0
    for page in [page.resolve() for page in given.pages] or pages():
        with scratch_directory() as scratch:
            if given.write:
                page.write_text(rewritten(page, scratch))
            else:
                for text in differences(page, scratch):
                    print(text, end="\n\n")
                    code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
