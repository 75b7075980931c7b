"""Assertions without a message that fail in jax's own frames during kernel tracing. No jax.

jax checks its own state with `assert`. If a kernel violates such a check, the exception has neither
text nor a line of the kernel, and jax hides the frames that would show the cause.
"""

from __future__ import annotations

import linecache
import os
import traceback
from dataclasses import dataclass

from pallas_debug.errors import JaxAssertionError
from pallas_debug.model import SourceLine

_JAX = tuple(f"{os.sep}jax{os.sep}{folder}{os.sep}" for folder in ("_src", "experimental"))
"""Folders of jax's own code, relative to the folder in which it is installed."""

_PACKAGE = f"{os.sep}pallas_debug{os.sep}"


@dataclass(frozen=True)
class JaxAssertion:
    """A failed assertion in jax.

    Attributes:
      asserted: source of the statement.
      function: jax function that contains it.
      place: file and line; the path starts at jax's folder.
      call: innermost line outside jax that led to it; None if there is none.
    """

    asserted: str
    function: str
    place: str
    call: SourceLine | None

    @property
    def headline(self) -> str:
        """One-line description of the failure, as the catalogue of explanations recognises it."""
        return (
            f"an assertion of jax's failed: `{self.asserted}` in {self.function} ({self.place}), "
            "while jax traced the kernel"
        )


def assertion(error: BaseException | None) -> JaxAssertion | None:
    """Return the jax assertion behind an exception; None for any other exception."""
    if type(error) is not AssertionError or any(map(str, error.args)):
        return None
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    if not frames or not _is_jax(frames[-1][0].co_filename):
        return None
    code, number = frames[-1]
    call = None
    for outer, line in frames:
        if not _is_jax(outer.co_filename) and not outer.co_filename.startswith("<"):
            call = call if _PACKAGE in outer.co_filename else (outer, line)
    source = None
    if call is not None:
        file, line = call[0].co_filename, call[1]
        text = linecache.getline(file, line).strip() or None
        source = SourceLine(file=file, line=line, function=call[0].co_name, text=text)
    folder = next(part for part in _JAX if part in code.co_filename)
    return JaxAssertion(
        asserted=linecache.getline(code.co_filename, number).strip(),
        function=code.co_name,
        place=f"{code.co_filename[code.co_filename.rindex(folder) + 1 :]}:{number}",
        call=source,
    )


def error_of(failed: JaxAssertion) -> JaxAssertionError:
    """Return the exception that replaces the original: what failed, where, and what to do."""
    from pallas_debug import explain  # it imports this module's siblings

    lines = [failed.headline]
    if failed.call is not None:
        call = failed.call
        lines.append(f"  {call.file}:{call.line}   {call.text or ''}".rstrip())
    known = explain.explain(failed.headline)
    if known is not None:
        lines += [f"  cause: {known.cause}", f"  try: {known.advice}"]
    return JaxAssertionError("\n".join(lines), failed.headline, failed.call)


def _is_jax(file: str) -> bool:
    return any(part in file for part in _JAX)
