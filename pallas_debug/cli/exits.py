"""Exit codes; the source of the generated `docs/reference/exit-codes.md`."""

from __future__ import annotations

import enum


class Exit(enum.IntEnum):
    """Exit codes of the command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    CANNOT_RUN = 3
    INTERRUPTED = 130


MEANING: dict[Exit, str] = {
    Exit.OK: (
        "success, and every kernel compiled; `verify` judged everything that it was asked to judge "
        "and found nothing"
    ),
    Exit.FAILED: (
        "success, but at least one kernel failed to compile; `verify` found something, whether or "
        "not it could judge the rest; `grep` found nothing; `explain` recognised nothing"
    ),
    Exit.USAGE: "invalid usage: an unknown target, kernel, pass or option",
    Exit.CANNOT_RUN: (
        "the command could not run: no libtpu, no such directory, a full disk, a script that "
        "raised or called no kernel; `verify` found nothing, but could not judge everything that "
        "it was asked to judge"
    ),
    Exit.INTERRUPTED: "ctrl+c; finished compilations are in the dump directory",
}
