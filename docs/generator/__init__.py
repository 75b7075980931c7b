"""Pages of `docs/reference/`, a module per subject; `docs/generate.py` writes them."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"
