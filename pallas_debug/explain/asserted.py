"""Assertions without a message that fail in jax's own frames during kernel tracing. No jax.

jax checks its own state with `assert`. If a kernel violates such a check, the exception has neither
text nor a line of the kernel, and jax hides the frames that would show the cause.
"""

from __future__ import annotations

import linecache
import os
import traceback

from pallas_debug.errors import JaxAssertionError
from pallas_debug.model import SourceLine

_JAX = tuple(f"{os.sep}jax{os.sep}{folder}{os.sep}" for folder in ("_src", "experimental"))
"""Folders of jax's own code, relative to the folder in which it is installed."""

_PACKAGE = f"{os.sep}pallas_debug{os.sep}"


def named(error: AssertionError) -> JaxAssertionError | None:
    """Return the exception that says what failed in jax, and the innermost line that led there.

    None for an assertion that is not jax's, or has a message.
    """
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    if any(map(str, error.args)) or not frames or not _is_jax(frames[-1][0].co_filename):
        return None
    from pallas_debug import explain  # it imports this module's siblings

    code, number = frames[-1]
    folder = next(part for part in _JAX if part in code.co_filename)
    place = code.co_filename[code.co_filename.rindex(folder) + 1 :]
    asserted = linecache.getline(code.co_filename, number).strip()
    headline = (  # as the catalogue recognises it
        f"an assertion of jax's failed: `{asserted}` in {code.co_name} ({place}:{number}), "
        "while jax traced the kernel"
    )
    lines, where = [headline], None
    if called := [frame for frame in frames if _is_users(frame[0].co_filename)]:
        outer, line = called[-1]
        text = linecache.getline(outer.co_filename, line).strip() or None
        where = SourceLine(file=outer.co_filename, line=line, function=outer.co_name, text=text)
        lines.append(f"  {where}   {text or ''}".rstrip())
    if (known := explain.explain(headline)) is not None:
        lines += [f"  cause: {known.cause}", f"  try: {known.advice}"]
    return JaxAssertionError("\n".join(lines), headline, where)


def _is_jax(file: str) -> bool:
    return any(part in file for part in _JAX)


def _is_users(file: str) -> bool:
    return not _is_jax(file) and _PACKAGE not in file and not file.startswith("<")
