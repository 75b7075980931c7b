"""Writes the committed pages of `docs/reference/`, the architecture maps and the home.

python docs/generate.py                writes them
python docs/generate.py --check        names the pages that are stale, and then exits with 1
python docs/generate.py findings.md    writes only the pages named

The other generated pages are not committed: `docs/build_hook.py` adds them to the site.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from generator import (
    REFERENCE,
    ROOT,
    commands,
    compiling,
    diagnoses,
    dumps,
    environment,
    interfaces,
    maps,
)

for root in (ROOT, ROOT / "kernels", ROOT / "pytest_plugin"):
    sys.path.insert(0, str(root))


MAPS: dict[str, bool] = {"README.md": False, "CONTRIBUTING.md": True}
"""Pages with a map; whether it has packages within packages."""


COMMITTED: dict[str, Callable[[], str]] = {
    "findings.md": diagnoses.findings,
    "advice.md": diagnoses.advice,
    "pytest-options.md": commands.pytest_options,
    "dump-format.md": dumps.dump_format,
}
"""Pages that a reader of the repository needs."""


BUILT: dict[str, Callable[[], str]] = {
    "cli.md": commands.cli,
    "exit-codes.md": commands.exit_codes,
    "python.md": interfaces.python,
    "targets.md": compiling.targets,
    "switches.md": compiling.switches,
    "environment.md": environment.environment,
    "errors.md": diagnoses.errors,
    "keys.md": commands.keys,
    "json.md": commands.json_output,
}
"""Pages that exist only on the site."""


HOME = ROOT / "docs" / "index.md"
"""The page that begins as the README does."""


def _with_map(path: Path, rooms: bool) -> str:
    return maps.between(path.read_text(), "map", maps.architecture(rooms=rooms))


def _home() -> str:
    return maps.between(HOME.read_text(), "readme", maps.start())


def main(arguments: Sequence[str]) -> int:
    writers = {REFERENCE / name: write for name, write in COMMITTED.items()}
    writers |= {ROOT / name: partial(_with_map, ROOT / name, rooms) for name, rooms in MAPS.items()}
    writers |= {ROOT / "llms.txt": maps.llms, HOME: _home}
    named = {argument for argument in arguments if not argument.startswith("--")}
    if unknown := named - {path.name for path in writers}:
        print(f"there is no page {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    stale = []
    for path, write in writers.items():
        if named and path.name not in named:
            continue
        text = write()
        if path.is_file() and path.read_text() == text:
            continue
        stale.append(path)
        if "--check" not in arguments:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    for path in stale:
        print(f"{'stale' if '--check' in arguments else 'written'}: {path.relative_to(ROOT)}")
    if stale and "--check" in arguments:
        print("run: python docs/generate.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
