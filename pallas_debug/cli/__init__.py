"""The `pallas-debug` command, one file per subcommand.

`--help` imports neither jax nor textual: a command's file is imported only to run the command, and
imports heavy dependencies lazily. Data goes to standard output, messages to standard error. What
cannot be done raises a `PallasDebugError`, which `guard` makes a message and an exit code.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys


def console() -> None:
    """Entry point of the console script: `main`, in a process that ends with it."""
    _open_streams()
    gc.set_threshold(50_000)  # few objects are garbage before the end, and looking takes 5 %
    codes: list[object] = []
    atexit.register(_end, codes)  # as the first one, which is called last
    try:
        main()
    except SystemExit as end:
        codes.append(end.code)
        raise


def _open_streams() -> None:
    """Replace standard streams that are closed, as by `>&-`, for which Python's are None.

    Otherwise the next file to be opened, such as one in the dump directory, would take the number
    of the stream, and get what compilers print on it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):  # standard error escapes what it cannot encode
        sys.stdout.reconfigure(errors="backslashreplace")


def _end(codes: list[object]) -> None:
    """End the process without freeing its memory, which would take a tenth of the time of `verify`.

    Python has waited for its threads and called all other `atexit` handlers by now.

    Args:
      codes: the exit code if it is known; otherwise Python ends the process.
    """
    code = codes[0] if codes else ""
    if code is not None and not isinstance(code, int):
        return
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return  # Python reports what it cannot write
    os._exit(code or 0)


def main() -> None:
    """Run the command; raises `SystemExit` at its end."""
    try:
        from pallas_debug.cli.group import cli
        from pallas_debug.cli.guard import guarded
    except KeyboardInterrupt:  # while modules were loaded
        sys.stderr.write("\npallas-debug: stopped\n")
        sys.exit(130)
    guarded(cli)
