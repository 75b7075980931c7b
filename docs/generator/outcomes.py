"""Exit code of each outcome of a command, for the page on exit codes."""

from __future__ import annotations

from pallas_debug.cli.exits import Exit

OUTCOMES: dict[str, Exit] = {
    "every kernel compiled": Exit.OK,
    "`verify` judged everything requested, and found nothing": Exit.OK,
    "`verify` found only faults that rest on made-up values of arguments": Exit.OK,
    "`ls` found no kernels in the directory": Exit.OK,
    "the reader of the output closed the pipe, as in `pallas-debug show … | head`": Exit.OK,
    "a kernel failed to compile": Exit.FAILED,
    "the program raised an exception when it was imported, traced or run": Exit.FAILED,
    "the program exited with a status other than 0": Exit.FAILED,
    "`verify` found something, whether or not it could judge the rest": Exit.FAILED,
    "`grep` found nothing, `explain` recognised nothing": Exit.FAILED,
    "unknown command or option, a missing argument, a value that does not parse": Exit.USAGE,
    "unknown target, kernel, stage, pass, engine, check, switch or mode": Exit.USAGE,
    "no such script, module or function": Exit.USAGE,
    "arguments that the function does not accept": Exit.USAGE,
    "a reference that raises an exception, or returns other kinds of arrays": Exit.USAGE,
    "the program calls no Pallas kernel": Exit.USAGE,
    "no such file or directory, or a file in place of a directory of dumps": Exit.USAGE,
    "the directory contains no kernel to show, or several and none was selected": Exit.USAGE,
    "jax or libtpu is missing or incompatible": Exit.CANNOT_RUN,
    "libtpu lacks the topology that a target names": Exit.CANNOT_RUN,
    "`doctor` found that kernels cannot be dumped": Exit.CANNOT_RUN,
    "a kernel was dumped without the schedule that a command reads": Exit.CANNOT_RUN,
    "part of a dump is damaged or cannot be read": Exit.CANNOT_RUN,
    "a file or directory cannot be written: no permission, a full disk": Exit.CANNOT_RUN,
    "`browse` without a terminal": Exit.CANNOT_RUN,
    "a compilation reached its time limit, and no kernel failed": Exit.CANNOT_RUN,
    "`verify` found nothing, but could not judge everything requested": Exit.CANNOT_RUN,
    "`browse` was ended by a signal, or its terminal went away": Exit.CANNOT_RUN,
    "an internal error in pallas-debug": Exit.CANNOT_RUN,
    "ctrl+c": Exit.INTERRUPTED,
    "a command other than `browse` was ended by SIGTERM": Exit.TERMINATED,
}
"""Exit code of each outcome, the same for all commands."""
