"""Final check of a script before it is run: our template, with only data in its gaps.

The script is parsed from its bytes, as the interpreter will do, and compared with its template.
Only the program, which passes through the closed grammar again, and the values of a few names, each
of which is checked, may differ.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

from pallas_debug.compiler import switches
from pallas_debug.errors import CannotRunError
from pallas_debug.render import one_line
from pallas_debug.reproduce import flags, grammar
from pallas_debug.reproduce.expressions import Refused
from pallas_debug.reproduce.template import (
    FIRST_LINE,
    IMPORTS_OF_STABLEHLO,
    MAX_DEVICES,
    SETTINGS,
    TEMPLATES,
)

_TOPOLOGY = re.compile(r"[A-Za-z0-9][\w.:-]{0,63}", re.ASCII)
_DEVICE_KIND = re.compile(r"[A-Za-z0-9][\w. -]{0,63}", re.ASCII)
_BASE85 = re.compile(r"[0-9A-Za-z!#$%&()*+;<=>?@^_`{|}~-]*")
_MAX_CORES = 16


@functools.lru_cache(maxsize=4)  # checked when the script is made, and again when it is run
def require(script: str) -> None:
    """Check that a script was made from the template.

    Raises:
      CannotRunError: the script differs from the template; the message names the difference.
    """
    try:
        _check(script)
    except Refused as error:
        line = f" at line {error.line}" if error.line is not None else ""
        raise CannotRunError(
            f"the script is not run: {one_line(error.why)}{line}. This is an internal "
            "error in pallas-debug, or an attack on it that was stopped here: please report it "
            "with the dump"
        ) from None


def _check(script: str) -> None:
    lines = script.split("\n")
    if lines[0] != FIRST_LINE:
        raise Refused("it does not begin with its encoding", 1)
    for number, line in enumerate(lines, 1):
        if not line.isprintable():
            raise Refused("it has a character that is not printable", number)
    if len(script) > grammar.MAX_PROGRAM and "\nMODULE = " not in script:
        raise Refused("it is too long")
    try:
        body = ast.parse(script.encode()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Refused(f"it is not valid Python ({type(error).__name__})") from None
    for kind, template in TEMPLATES.items():
        end = _forms(template)
        if len(body) > len(end) and _dumped(body[-len(end) :]) == end:
            _check_parts(body[: -len(end)], is_program=kind == "program")
            return
    raise Refused("it does not end as the scripts of this version do")


def _check_parts(body: Sequence[ast.stmt], *, is_program: bool) -> None:
    first, settings = body[: -len(SETTINGS)], body[-len(SETTINGS) :]
    if len(settings) != len(SETTINGS):
        raise Refused("it has too few settings")
    for node, names in zip(settings, SETTINGS, strict=True):
        _check_setting(node, names)
    if is_program:
        grammar.Emitter().module(first)
        return
    if _dumped(first[:-1]) != _forms(IMPORTS_OF_STABLEHLO):
        raise Refused("more than a module precedes its settings")
    module = _value(first[-1], "MODULE")
    if not isinstance(module, str) or not _BASE85.fullmatch(module):
        raise Refused("MODULE is not a packed module", first[-1].lineno)


def _check_setting(node: ast.stmt, name: str) -> None:
    value = _value(node, name)
    if not _VALUES[name](value):
        raise Refused(f"{name} is {value!r}", node.lineno)


def _value(node: ast.stmt, names: str) -> Any:
    """Return the value assigned to a name, or to a tuple of names."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        raise Refused(f"expected {names}", node.lineno)
    if ast.unparse(node.targets[0]).strip("()") != names:
        raise Refused(f"expected {names}", node.lineno)
    try:
        return ast.literal_eval(node.value)
    except (ValueError, TypeError, MemoryError, RecursionError):
        raise Refused(f"{names} is not a literal", node.lineno) from None


@functools.cache
def _forms(template: str) -> list[str]:
    return _dumped(ast.parse(template).body)


def _dumped(body: Sequence[ast.stmt]) -> list[str]:
    return [ast.dump(node) for node in body]


def _is_chip(value: Any) -> bool:
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    kind, cores = value
    is_kind = kind is None or (isinstance(kind, str) and _DEVICE_KIND.fullmatch(kind) is not None)
    return is_kind and type(cores) is int and 0 < cores <= _MAX_CORES


def _is_flags(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    found = flags.chosen([value])
    return not found.left_out and " ".join(found.kept) == value


_VALUES: dict[str, Callable[[Any], bool]] = {
    "TOPOLOGY": lambda v: isinstance(v, str) and _TOPOLOGY.fullmatch(v) is not None,
    "DEVICE_KIND, NUM_CORES": _is_chip,
    "NUM_DEVICES": lambda v: type(v) is int and 0 < v <= MAX_DEVICES,
    "SETTINGS": lambda v: (
        isinstance(v, tuple) and set(v) <= set(switches.lowering_settings(switches.SWITCHES))
    ),
    "OPTIONS": lambda v: (
        isinstance(v, dict) and v.items() <= switches.compile_options(switches.SWITCHES).items()
    ),
    "FLAGS": _is_flags,
}
