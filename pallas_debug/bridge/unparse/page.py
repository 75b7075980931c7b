"""Lines of a generated program, and the names in them."""

from __future__ import annotations

import itertools
import keyword
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from pallas_debug.bridge.jaxcompat import jax_core
from pallas_debug.bridge.unparse import values

_VALUE = re.compile(r"v\d+")

_RESERVED = re.compile(
    "jax|jnp|np|lax|pl|pltpu|args|program|ARGUMENTS|AXES|ENABLE_X64|call|"
    "TOPOLOGY|DEVICE_KIND|NUM_CORES|NUM_DEVICES|SETTINGS|OPTIONS|FLAGS|MODULE|"
    "base64|zlib|compile_only|compiled|failed|lowered|main|"
    "Exception|SystemExit|list|print|tuple|type|zip"
)
"""Names of modules, of what each program defines, and of the script around it: no function,
operand or value of a kernel may have one."""


class Page:
    """A program being written.

    Attributes:
      lines: lines so far.
      imports: modules needed in addition to the usual ones.
      grid_axes: the grid dimension of each axis of `program_id`.
    """

    def __init__(self, *, enable_x64: bool, grid_axes: Sequence[int]) -> None:
        self.lines: list[str] = []
        self.imports: set[str] = set()
        self.enable_x64 = enable_x64
        self.grid_axes = tuple(grid_axes)
        self._taken: set[str] = set()
        self._values = itertools.count(1)

    def name(self, wanted: str) -> str:
        """Return an unused name like `wanted`."""
        name = re.sub(r"\W+", "_", wanted, flags=re.ASCII).strip("_") or "it"
        if name[0].isdigit() or keyword.iskeyword(name) or _VALUE.fullmatch(name):
            name = f"{name}_" if keyword.iskeyword(name) else f"k_{name}"
        numbered = (f"{name}_{number}" for number in itertools.count(2))
        found = next(
            n
            for n in itertools.chain([name], numbered)
            if n not in self._taken and not _RESERVED.fullmatch(n)
        )
        self._taken.add(found)
        return found

    def value(self) -> str:
        return f"v{next(self._values)}"


class Writer:
    """Writer for a jaxpr at some depth of the page, with the names of its variables.

    Args:
      known: names, or whole expressions, by variable.
      live: variables that are read.
    """

    def __init__(
        self,
        page: Page,
        depth: int,
        known: Iterable[tuple[Any, str]] = (),
        live: Collection[Any] = frozenset(),
    ) -> None:
        self.page = page
        self.depth = depth
        self._known: dict[Any, str] = dict(known)
        self._live = live
        self._choices: dict[Any, str] = {}

    def line(self, text: str, comment: str = "") -> None:
        indent = "    " * self.depth
        self.page.lines.append(f"{indent}{text}  # {comment}" if comment else f"{indent}{text}")

    def deeper(self) -> Writer:
        """Return an empty block for the body of a nested function."""
        return Writer(self.page, self.depth + 1)

    def beside(self, known: Iterable[tuple[Any, str]], live: Collection[Any]) -> Writer:
        """Return a block for another jaxpr at the same depth."""
        return Writer(self.page, self.depth, known, live)

    def is_dropped(self, var: Any) -> bool:
        return var not in self._live

    def call(self, var: Any, name: str) -> None:
        self._known[var] = name

    def call_choice(self, var: Any, name: str) -> None:
        """Set the name of the condition or index from which a branch number is computed."""
        self._choices[var] = name

    def read(self, atom: Any, *, plain: bool = False) -> str:
        """Return a variable's name, or a literal with its dtype unless `plain`."""
        if isinstance(atom, jax_core.Literal):
            return values.number(atom.val) if plain else values.constant(typed(atom))
        return self._known[atom]

    def index(self, atom: Any) -> str:
        """Write an integer operand as in an index."""
        return self.read(atom, plain=not self.page.enable_x64)

    def choice(self, atom: Any, *, of_two: bool) -> str:
        """Write a branch number, or a bool if there are only two (`of_two`)."""
        if isinstance(atom, jax_core.Literal):
            return repr(bool(atom.val) if of_two else int(atom.val))
        if atom in self._choices:
            return self._choices[atom]
        return f"{self.read(atom)} != 0" if of_two else self.read(atom)

    def assign(self, outvars: Sequence[Any], text: str) -> None:
        """Write an assignment of an expression to its results."""
        if all(map(self.is_dropped, outvars)):
            self.line(text)
            return
        names = [self.bind(var) for var in outvars]
        self.line(f"{', '.join(names)} = {text}", types(outvars))

    def assign_first(self, outvars: Sequence[Any], text: str) -> None:
        """Like `assign`, for an expression that is a list of one element."""
        if self.is_dropped(outvars[0]):
            self.line(text)
        else:
            self.line(f"({self.bind(outvars[0])},) = {text}", types(outvars))

    def bind(self, var: Any) -> str:
        """Return a new name for a result; `_` if it is unused."""
        if self.is_dropped(var):
            return "_"
        name = self.page.value()
        self.call(var, name)
        return name


def typed(literal: Any) -> Any:
    """Return a literal's value with its own dtype; the value may be a Python scalar."""
    return np.asarray(literal.val, literal.aval.dtype)


def types(variables: Sequence[Any]) -> str:
    """Format types as `f32[8,128], i32[]`."""
    return ", ".join(v.aval.str_short(short_dtypes=True) for v in variables)
