"""Update of file records in the manifests of checked-in dumps: `python records.py DIR…`.

Needed because the scripts that make the dumps replace the machine's directories in all texts
afterwards.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path


def main(folders: list[str]) -> None:
    for manifest in (path for folder in folders for path in Path(folder).rglob("compilation.json")):
        document = json.loads(manifest.read_text())
        last: dict[str, object] = {}
        for this in document["passes"]:
            if this.get("file"):
                last = _record(manifest.parent / this["file"])
            this |= last
        for name in list(document.get("files", {})):
            if (manifest.parent / name).exists():
                document["files"][name] = _record(manifest.parent / name)
            else:  # left out by the script
                del document["files"][name]
        manifest.write_text(json.dumps(document, ensure_ascii=False, indent=1))


def _record(path: Path) -> dict[str, object]:
    data = path.read_bytes()
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


if __name__ == "__main__":
    main(sys.argv[1:])
