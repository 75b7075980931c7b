"""Maps of the packages for README and CONTRIBUTING, and of the pages for `llms.txt`."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

from generator import ROOT


def llms() -> str:
    """`llms.txt`: what coding assistants need, and where the pages are."""
    from pallas_debug.cli import agents

    lines = [agents.guide(), "## Docs\n"]
    for title, path in _navigation():
        if (ROOT / "docs" / path).is_file():  # otherwise only on the site
            lines.append(f"- [{title}](docs/{path})")
    return "\n".join(lines) + "\n"


def _navigation() -> list[tuple[str, str]]:
    """Titles and paths of the pages, from `mkdocs.yml`."""
    text = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    return re.findall(r"^ *- ([^:\n]+): (\S+\.md)$", text, re.MULTILINE)


def architecture(*, rooms: bool) -> str:
    """The packages in the order of the floors, each with the first line of its docstring.

    Args:
      rooms: whether packages within packages are listed.
    """
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = config["tool"]["importlinter"]["contracts"]
    floors = {
        contract["containers"][0]: [
            name.strip() for layer in contract["layers"] for name in layer.split("|")
        ]
        for contract in contracts
        if contract["type"] == "layers"
    }
    lines = ["pallas_debug/"]

    def visit(package: Path, dotted: str, depth: int) -> None:
        names = floors.get(dotted) or sorted(p.parent.name for p in package.glob("*/__init__.py"))
        for name in names:
            folder = package / name
            is_package = (folder / "__init__.py").is_file()
            if name.startswith("_v") or (depth > 1 and not is_package):
                continue
            path = folder / "__init__.py" if is_package else folder.with_suffix(".py")
            label = "  " * depth + name + ("/" if is_package else ".py")
            lines.append(f"{label:<18}{_summary(path)}")
            if is_package and rooms:
                visit(folder, f"{dotted}.{name}", depth + 1)

    visit(ROOT / "pallas_debug", "pallas_debug", 1)
    for path in ("kernels/pallas_debug_kernels", "pytest_plugin/pallas_debug_pytest"):
        lines += [f"{path}/", f"  {_summary(ROOT / path / '__init__.py')}"]
    return "```text\n" + "\n".join(lines) + "\n```"


def _summary(path: Path) -> str:
    return (
        (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0].replace("`", "")
    )


BEGIN, END = "<!-- map -->\n", "<!-- /map -->"


def with_map(text: str, new: str) -> str:
    """A page with the text between the markers replaced."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no map to write: {BEGIN.strip()} … {END.strip()}")
    return f"{before}{begin}\n{new}\n\n{end}{after}"
