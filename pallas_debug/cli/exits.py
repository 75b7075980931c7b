"""Exit codes; the source of the page on exit codes."""

from __future__ import annotations

import enum


class Exit(enum.IntEnum):
    """Exit codes of the command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    CANNOT_RUN = 3
    INTERRUPTED = 130
    TERMINATED = 143


MEANING: dict[Exit, str] = {
    Exit.OK: "done, and nothing is wrong",
    Exit.FAILED: "done, and something is wrong with the kernels or the program; or nothing found",
    Exit.USAGE: "the command line is invalid, or names something that does not exist",
    Exit.CANNOT_RUN: "part of the work failed because of this machine or the state of its files",
    Exit.INTERRUPTED: "ctrl+c; finished compilations are in the dump directory",
    Exit.TERMINATED: "SIGTERM; finished compilations are in the dump directory",
}
"""Meaning of each code, the same for all commands."""
