"""Exit codes, documented in `docs/reference/exit-codes.md`, which is generated from here."""

from __future__ import annotations

import enum


class Exit(enum.IntEnum):
    """What the command's exit code says."""

    OK = 0
    FAILED = 1
    USAGE = 2
    CANNOT_RUN = 3
    INTERRUPTED = 130


MEANING: dict[Exit, str] = {
    Exit.OK: (
        "everything asked for was done, and every kernel compiled; `verify` judged all that it was "
        "asked to judge and found nothing"
    ),
    Exit.FAILED: (
        "it was done, and at least one kernel failed to compile; `verify` found something, whether "
        "or not it could judge the rest; `grep` found nothing, `explain` recognised nothing"
    ),
    Exit.USAGE: "what was asked for makes no sense: an unknown target, kernel, pass or option",
    Exit.CANNOT_RUN: (
        "it could not be done: no libtpu, no such directory, a full disk, "
        "a script that raised or called no kernel; `verify` found nothing, but could not judge "
        "all that it was asked to judge"
    ),
    Exit.INTERRUPTED: "ctrl+c; what was finished is in the dump directory",
}
