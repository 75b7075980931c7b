"""Findings of the machine in a kernel that does not exist."""

from __future__ import annotations

from typing import Any

from pallas_debug.findings.faults import Fault
from pallas_debug.model import Finding, SourceLine, Witness


def line(number: int) -> SourceLine:
    return SourceLine(file="rows.py", line=number)


def finding(kind: str, operand: str, at: int, **fields: Any) -> Finding:
    witness = Witness(source=line(at), operand=operand, **fields)
    return Finding(
        kind=Fault(kind), kernel="rows", message=kind, engines=("machine",), witness=witness
    )
