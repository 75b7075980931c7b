"""mkdocs hook: adds the generated pages that are not committed to the site."""

from __future__ import annotations

import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files


def on_files(files: Files, config: MkDocsConfig) -> Files:
    sys.path.insert(0, str(Path(__file__).parent))  # mkdocs undoes changes made on import
    import generate

    for name, write in generate.BUILT.items():
        files.append(File.generated(config, f"reference/{name}", content=write()))
    return files
