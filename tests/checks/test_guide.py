"""The guide's list of checks, compared with the descriptions in the code."""

from __future__ import annotations

import re
from pathlib import Path

from pallas_debug import defaults
from pallas_debug.checks import names

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "checks.md"


def test_the_table_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| (on|off) \|$", GUIDE.read_text(), re.MULTILINE)
    assert rows == [
        (name, text, "on" if name in defaults.DEFAULT_CHECKS else "off")
        for name, text in names.CHECKS.items()
    ]
