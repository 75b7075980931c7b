"""Generator of the dumps next to this file, using the real compiler: `python make.py TARGET…`.

The folder is named after the installed libtpu. In the output, the directories of this machine are
replaced with `…`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main(targets: list[str]) -> None:
    version = ".".join(metadata.version("libtpu").split(".")[:3])
    root = HERE / f"libtpu-{version}"
    shutil.rmtree(root, ignore_errors=True)
    command = Path(sys.executable).with_name("pallas-debug")
    options = ["--arg", "f32[32,128]", "--to", root, "-t", ",".join(targets)]
    subprocess.run([command, "dump", "rows:rows", *options], cwd=HERE, check=True)
    for path in [p for p in root.rglob("*") if p.is_file()]:
        data = path.read_bytes()
        for folder in (HERE, HERE.parents[2], Path(sys.prefix)):
            data = data.replace(str(folder).encode(), "…".encode())
        path.write_bytes(data)
    shutil.rmtree(root / ".locks")
    subprocess.run([sys.executable, HERE.parents[1] / "records.py", root], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
