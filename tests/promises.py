"""Generator of `tests/COVERAGE.md`: which test files verify each promise of the project.

    python tests/promises.py            write the page
    python tests/promises.py --check    exit with 1 if the page is stale, with 2 if it was written
                                        with another jax: some tables of tests depend on it

Nothing is listed by hand. Promises are read off the code: guide pages, faults, targets, commands.
Tests are found by what they are parametrised with (broken kernels), by the commands in the pages
that they run, and by the names in their source.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
PAGE = TESTS / "COVERAGE.md"
RUNS_PAGES = "docs/test_commands.py"

for folder in (ROOT, ROOT / "kernels", ROOT / "pytest_plugin", ROOT / "docs", TESTS):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))

PARAM = type(pytest.param())
MAX_FILES = 9
"""Files named in a cell; of more only the number per folder is given."""

Shown = Mapping[str, set[str]]


class Source:
    """A test file, parsed and walked once.

    Attributes:
      names: variables and attributes.
      words: of its strings.
      started: words that stand first in a call of a fixture that runs a command, or in a list for
        `commands`; or second in a list, after the path of the command.
    """

    def __init__(self, path: Path) -> None:
        self.names: set[str] = set()
        self.started: set[str] = set()
        strings = []
        for node in nodes(ast.parse(path.read_text())):
            if isinstance(node, ast.Name):
                self.names.add(node.id)
            elif isinstance(node, ast.Attribute):
                self.names.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                strings.append(node.value)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                self._add_started(called_with(node.func.id, node.args))
            elif isinstance(node, ast.List):
                self._add_started(node.elts[1:2])
        self.words = set(re.findall(r"[\w-]+", "\n".join(strings)))

    def _add_started(self, listed: list[ast.expr]) -> None:
        self.started |= {str(item.value) for item in listed if isinstance(item, ast.Constant)}


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes below a node, in any order; several times as fast as `ast.walk`."""
    waiting = [tree]
    while waiting:
        for value in vars(waiting.pop()).values():
            if isinstance(value, ast.AST):
                waiting.append(value)
                yield value
            elif isinstance(value, list):
                waiting += [item for item in value if isinstance(item, ast.AST)]
                yield from (item for item in value if isinstance(item, ast.AST))


def called_with(name: str, args: list[ast.expr]) -> list[ast.expr]:
    """The commands that a call of a fixture runs."""
    if name in ("command", "real_command", "run", "tool"):
        return args[:1]
    if name == "commands":
        return [arg.elts[0] for arg in args if isinstance(arg, ast.List | ast.Tuple) and arg.elts]
    return []


def main(arguments: list[str]) -> int:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if "--check" not in arguments:
        PAGE.write_text(page())
        return 0
    written = PAGE.read_text() if PAGE.exists() else ""
    if written and jax_release() not in written:
        sys.stderr.write(f"tests/COVERAGE.md was written with another jax than {jax_release()}\n")
        return 2
    if written == page():
        return 0
    sys.stderr.write("tests/COVERAGE.md is stale: run `python tests/promises.py`\n")
    return 1


def jax_release() -> str:
    return "jax " + ".".join(metadata.version("jax").split(".")[:2])


def page() -> str:
    sources = {
        str(path.relative_to(TESTS)): Source(path) for path in sorted(TESTS.rglob("test_*.py"))
    }
    tables = [
        ("Pages with commands", pages()),
        ("Faults", faults(sources)),
        ("Targets", targets(sources)),
        ("Commands", commands(sources)),
    ]
    lines = [
        "# What shows what",
        "",
        "Written by `python tests/promises.py`, from the code and the tests; a test checks that it "
        f"is current (with {jax_release()}).",
        "Files are those of `tests/`.",
    ]
    unshown = [f"{title}: `{name}`" for title, shown in tables for name in shown if not shown[name]]
    lines += ["", "## Promises without a test", ""]
    lines += [f"- {line}" for line in unshown] or ["None."]
    for title, shown in tables:
        lines += ["", f"## {title}", "", "| promise | shown by |", "| --- | --- |"]
        alike: dict[str, list[str]] = defaultdict(list)
        for name, files in shown.items():
            alike[cell(files)].append(f"`{name}`")
        lines += [f"| {', '.join(names)} | {files} |" for files, names in alike.items()]
    return "\n".join(lines) + "\n"


def cell(files: set[str]) -> str:
    """The files, by folder (`checks/ test_check, test_sites`), or how many each folder has."""
    folders = defaultdict(list)
    for file in sorted(files):
        folder, _, name = file.rpartition("/")
        folders[folder].append(name.removesuffix(".py"))
    if len(files) > MAX_FILES:
        return ", ".join(f"{folder}/ ({len(names)})" for folder, names in folders.items())
    return "; ".join(f"{folder}/ {', '.join(names)}" for folder, names in folders.items()) or "–"


def pages() -> Shown:
    """Guides and other pages; those with commands are run."""
    run = load(ROOT / "docs" / "commands.py").pages()
    guides = [ROOT / "README.md", ROOT / "docs/quickstart.md", *(ROOT / "docs/guides").glob("*.md")]
    return {
        str(path.relative_to(ROOT)): {RUNS_PAGES} if path in run else set()
        for path in sorted({*guides, *run})
    }


def faults(sources: Mapping[str, Source]) -> Shown:
    """Faults, by the broken kernels that tests are parametrised with, and by their names."""
    from broken_kernels import BrokenKernel

    from pallas_debug.findings.faults import Fault

    found = {str(fault): named(sources, str(fault)) for fault in Fault}
    for file, source in sources.items():
        if source.names.isdisjoint({"BROKEN", "OF_FACT"}):
            continue
        for value in parameters(load(TESTS / file)):
            if isinstance(value, BrokenKernel):
                found[value.fault].add(file)
    return found


def parameters(module: ModuleType) -> Iterator[Any]:
    """The values of each `parametrize` of a module's tests."""
    for name, function in vars(module).items():
        if not name.startswith("test_") or re.search("twin|repaired", name):
            continue  # the sound twin of a broken kernel shows no fault
        for mark in getattr(function, "pytestmark", ()):
            if mark.name == "parametrize":
                for case in mark.args[1]:
                    if isinstance(case, PARAM):
                        yield from case.values
                    else:
                        yield from case if isinstance(case, tuple | list) else (case,)


def targets(sources: Mapping[str, Source]) -> Shown:
    """Targets, by their names; tests over `BUILTIN` show each of them."""
    from pallas_debug.compiler.targets import BUILTIN

    all_of_them = {file for file, source in sources.items() if "BUILTIN" in source.names}
    return {target.name: named(sources, target.name) | all_of_them for target in BUILTIN}


def commands(sources: Mapping[str, Source]) -> Shown:
    """Commands, by the pages and the tests that run them."""
    from pallas_debug.cli.group import COMMANDS

    run = load(ROOT / "docs" / "commands.py")
    on_pages = "\n".join(path.read_text() for path in run.pages())
    found: dict[str, set[str]] = {}
    for name in COMMANDS:
        found[name] = {file for file, source in sources.items() if name in source.started}
        if re.search(rf"^\$ .*pallas-debug {name}\b", on_pages, re.MULTILINE):
            found[name].add(RUNS_PAGES)
    return found


def named(sources: Mapping[str, Source], word: str) -> set[str]:
    """Files with a string in which this word stands."""
    return {file for file, source in sources.items() if word in source.words}


def load(path: Path) -> ModuleType:
    """A module by its path, under a name of its own."""
    name = f"_promises_{path.relative_to(ROOT).with_suffix('')}".replace("/", "_")
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
