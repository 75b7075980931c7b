"""One replacement in jax: a row of the table in `patches.py`, looked up and applied."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from dataclasses import dataclass
from typing import Any

from pallas_debug.bridge import versions

ABSENT: Any = object()
"""Marks a missing value, both as an original and as a replacement."""


@dataclass(frozen=True, kw_only=True)
class Patch:
    """One replacement in jax.

    Attributes:
      area: purpose; the patches of an area are installed together.
      owner: `module` or `module:attribute` of the object to modify.
      name: name of the attribute, or the key.
      is_key: whether `name` is a key, or the path of one.
      replacement: `module:function`, called with the original and `args`; returns the value to
        install.
      why: the reason, in a clause.
      parameters: parameters of the original that the replacement relies on.
      is_optional: whether the original may be missing.
      is_lazy: whether the owner is imported only for users of the area, not to test the row.
      first: first jax that needs it.
      last: last series of jax that it was verified with; a row with an older one ends there.
    """

    area: str
    owner: str
    name: str
    replacement: str
    why: str
    is_key: bool = False
    args: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    is_optional: bool = False
    is_lazy: bool = False
    first: str = versions.OLDEST
    last: str = versions.NEWEST

    def __str__(self) -> str:
        owner = re.split(r"[.:]", self.owner)[-1]
        if self.is_key:
            _, is_path, path = self.name.partition(":")
            key = path if is_path else repr(self.name)
            module = self.owner.partition(":")[0].rpartition(".")[2]
            return f"{module}.{owner}[{key}]"
        return f"{owner}.{self.name}"

    @property
    def is_needed(self) -> bool:
        """True if the installed jax needs this patch."""
        is_open = self.last == versions.NEWEST
        return versions.is_within(self.first, "" if is_open else self.last)

    def problem(self) -> str | None:
        """Return how the installed jax does not fit this row, or None."""
        if self.is_lazy and self.owner.partition(":")[0] not in sys.modules:
            return None
        now = self.now()
        if now is ABSENT:
            return None if self.is_optional else f"{self} is not where it was"
        if not self.parameters:
            return None
        missing = set(self.parameters) - set(inspect.signature(now).parameters)
        return f"{self} has no parameter {', '.join(sorted(missing))}" if missing else None

    def now(self) -> Any:
        """Current value, inherited or not."""
        owner = resolve(self.owner)
        return owner.get(self._key, ABSENT) if self.is_key else getattr(owner, self.name, ABSENT)

    def own(self) -> Any:
        """Current value; ABSENT for an inherited attribute."""
        return self.now() if self.is_key else vars(resolve(self.owner)).get(self.name, ABSENT)

    @property
    def _key(self) -> Any:
        return resolve(self.name) if ":" in self.name else self.name

    def put(self, value: Any) -> None:
        """Install a value; ABSENT removes it."""
        owner = resolve(self.owner)
        if not self.is_key:
            if value is not ABSENT:
                setattr(owner, self.name, value)
            elif self.name in vars(owner):
                delattr(owner, self.name)
        elif value is ABSENT:
            owner.pop(self._key, None)
        else:
            owner[self._key] = value


def resolve(path: str) -> Any:
    """Return the object at `module` or `module:attribute.attribute`."""
    module, _, names = path.partition(":")
    found: Any = importlib.import_module(module)
    for name in names.split(".") if names else ():
        found = getattr(found, name)
    return found
