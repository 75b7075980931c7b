"""Maps of the packages for README and CONTRIBUTING, of the pages for `llms.txt`, and the home."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

from generator import ROOT

HEAD = """\
# pallas-debug

> Checks JAX Pallas TPU kernels on a machine without a TPU: compiles them with the real TPU
> compiler, runs them in jax's interpreters with checks inserted, and reports each fault once, with
> its line.

## Working on a kernel

1. Judge it: `pallas-debug verify kern.py:function --arg 'f32[16,128]' --target v5e --json`.
   One `--arg` per argument: an array by dtype and shape, with values as in `'i32[2]=[0,4]'`, or a
   Python value (`causal=True`). Neither a TPU nor a network is needed.
2. Exit code 0: nothing found, and everything judged. 1: apply the fix in `advice` at the line of
   the finding, and repeat. 2: the command line is invalid; the message explains why. 3: something
   could not be judged or run, so a kernel without a finding may still be wrong.
3. A kernel that does not compile: `pallas-debug dump kern.py:function --arg …`, then
   `pallas-debug explain dumps --json`. A log or a message: `pallas-debug explain FILE`.
4. See what the compiler did: `pallas-debug ls dumps`, `pallas-debug show dumps/NAME PASS`,
   `pallas-debug diff dumps/NAME PASS`.
5. In a test suite: `pytest --pallas-verify=v5e tests/`.

Reading dumps does not require jax. `pallas-debug doctor` lists what is missing on a machine.
"""


def llms() -> str:
    """`llms.txt`: what coding assistants need, and where the pages are."""
    lines = [_guide(), "## Docs\n"]
    for title, path in _navigation():
        if (ROOT / "docs" / path).is_file():  # otherwise only on the site
            lines.append(f"- [{title}](docs/{path})")
    return "\n".join(lines) + "\n"


def _guide() -> str:
    """Instructions for programs and coding assistants that use the commands."""
    from generator.outcomes import OUTCOMES
    from pallas_debug.cli.exits import MEANING
    from pallas_debug.cli.group import COMMANDS

    parts = [HEAD, "## Commands\n", *(f"- `{name}`: {what}" for name, what in COMMANDS.items())]
    parts += ["\n## Exit codes\n", *(f"- {code.value}: {text}" for code, text in MEANING.items())]
    parts += ["\nThe same outcome has the same code in every command:\n"]
    parts += [f"- {code.value}: {text}" for text, code in OUTCOMES.items()]
    parts += [
        "\n## Output for programs\n",
        "- `--json`: one document with a field `schema`, the name and version of its format, such "
        "as `pallas-debug/verify/1`. The version goes up when a field is removed, renamed or "
        "changes its meaning; new fields may appear at any time.",
        "- `verify --sarif FILE` for code scanning.",
        "- Data is on standard output, messages are on standard error.",
    ]
    return "\n".join(parts) + "\n"


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


def start() -> str:
    """The beginning of the README, with links as they are within `docs`: a bug and what is said."""
    text = (ROOT / "README.md").read_text().partition("\n## ")[0]
    bare = re.sub(r"^<!-- .* -->\n", "", text, flags=re.MULTILINE)
    return bare.replace("](docs/", "](").strip()


def between(text: str, name: str, new: str) -> str:
    """A page with the text between the markers of this name replaced."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"nothing to replace: {begin.strip()} … {end}")
    return f"{before}{begin}\n{new}\n\n{end}{after}"
