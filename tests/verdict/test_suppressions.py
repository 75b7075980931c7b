"""Suppressed findings: the file, what it matches, and its errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from pallas_debug.errors import UsageError
from pallas_debug.findings.faults import Fault
from pallas_debug.model import Finding, SourceLine, Witness
from pallas_debug.verdict import suppressions
from pallas_debug.verdict.suppressions import Suppression

FOUND = Finding(
    kind=Fault.PADDING_READ,
    kernel="ragged_rows",
    message="padding is read",
    witness=Witness(operand="x_ref", source=SourceLine(file="/home/me/src/rows.py", line=12)),
)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "pallas-debug.toml"
    path.write_text(text)
    return path


def test_a_file_is_read(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        [[suppress]]
        kind = "PaddingRead"
        kernel = "ragged_*"
        reason = "the caller cuts it off"
        """,
    )
    (one,) = suppressions.read(path)
    assert one == Suppression(
        kind="PaddingRead", kernel="ragged_*", reason="the caller cuts it off"
    )
    kept, left_out, idle = suppressions.apply([FOUND], [one])
    assert (kept, idle) == ((), ())
    assert [(s.finding, s.reason) for s in left_out] == [(FOUND, "the caller cuts it off")]


@pytest.mark.parametrize(
    "fields, fits",
    [
        ({}, True),
        ({"kind": "NanProduced"}, False),
        ({"kernel": "ragged_rows"}, True),
        ({"kernel": "rows"}, False),
        ({"line": "rows.py:12"}, True),
        ({"line": "src/rows.py"}, True),
        ({"line": "rows.py:13"}, False),
        ({"line": "ws.py:12"}, False),
        ({"operand": "x_ref"}, True),
        ({"operand": "y_ref"}, False),
    ],
)
def test_what_fits(fields: dict[str, str], fits: bool) -> None:
    assert Suppression(**{"kind": "PaddingRead", "reason": "r", **fields}).fits(FOUND) is fits


def test_one_that_fits_nothing_is_said() -> None:
    idle = Suppression(kind="PaddingRead", kernel="gone", reason="r")
    kept, left_out, message = suppressions.apply([FOUND], [idle])
    assert kept == (FOUND,)
    assert left_out == ()
    assert message == (
        "the suppression of kind PaddingRead, kernel gone matches no finding; remove it",
    )


@pytest.mark.parametrize(
    "text, message",
    [
        ("kind = ", "is not valid TOML"),
        ('suppress = "all"', "Expected `array`, got `str`"),
        ("suppress = [1]", "Expected `object`, got `int` - at `$[0]`, counted from 0; a [[supp"),
        (
            "[[suppress]]\nkind = 'A'\nreson = 'b'",
            "unknown field `reson` - at `$[0]`, counted from 0; a [[suppress]] has a kind and",
        ),
        ("[[suppress]]\nkind = 'A'\nreason = 3", "Expected `str`, got `int` - at `$[0].reason`"),
        ("[[suppress]]\nkind = 'A'\nreason = ' '", "- at `$[0].reason`, counted from 0; a"),
        ("[[suppress]]\nkernel = 'a'", "missing required field `kind` - at `$[0]`"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UsageError) as raised:
        suppressions.read(path)
    assert message in str(raised.value)
    assert str(path) in str(raised.value)
