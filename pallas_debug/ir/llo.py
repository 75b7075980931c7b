"""Parts of LLO text and of bundles that several readers look for.

`ir/operations.py` reads single lines of it, `ir/bundles.py` whole listings of final bundles.
"""

from __future__ import annotations

import re

NAME = r"%[\w$.-]+"

VALUE = re.compile(NAME)

HEAD = (
    r"[ \t]*+(?P<number>0x[0-9a-f]{1,15}|\d{1,15})[ \t]++(?P<mark>[A-Z]{2})?+[ \t]*+:[ \t]?"
    r"(?P<depth>[> ]*+)"
)
"""Beginning of a bundle. Possessive, so that it never backtracks into a run of blanks: a text may
consist of blanks."""

OPERATION = (
    rf"(?:\((?P<guard>!?{NAME})\) )?"
    rf"(?P<results>{NAME}(?:, {NAME})*) = (?P<opcode>[A-Za-z_][\w.]*)"
)
"""An operation up to its operands."""

LOCATION = re.compile(r" ?/\* loc\((?P<body>[^\n*]{0,4000}?)\) ?\*/")
"""A location in a comment on a single line."""

SPILL_SLOT = re.compile(r"#(?P<slot>allocation\d+_spill)\]")
"""Memory in which a register is spilled."""
