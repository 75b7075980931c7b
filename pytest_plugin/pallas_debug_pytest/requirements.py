"""Requirements of `requires=`: chips and versions, evaluated without looking at any device.

    v5e+            this chip or a later one: v4, v5e, v5p, v6e, tpu7x
    v6e             this chip
    v5e or v6e      one of them
    not v4          any chip but this one; also `not v6e+`
    jax>=0.11,<0.13 a version of an installed distribution, as pip writes it

Imported when a test has such a requirement. Must not import jax: tests are being collected.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement

from pallas_debug.compiler import targets
from pallas_debug.model import Target

_CHIPS = tuple(target.name for target in targets.BUILTIN)
_VERSION = re.compile(r"[\w.-]+\s*(\[|[<>=!~])")


@dataclass(frozen=True)
class Need:
    """One requirement."""

    text: str
    extra: tuple[Target, ...] = ()

    def __post_init__(self) -> None:
        """Raises:
        ValueError: it is invalid; the message shows the syntax.
        """
        if _VERSION.match(self.text):
            try:
                Requirement(self.text)
            except InvalidRequirement as error:
                raise ValueError(f"{self.text!r} is not a version: {error}") from error
            return
        known = (*_CHIPS, *(target.name for target in self.extra))
        for chip in self._alternatives():
            if chip.removesuffix("+") not in known:
                raise ValueError(
                    f"unknown requirement {self.text!r}; write a chip ({', '.join(known)}), "
                    "such as v5e+, 'v5e or v6e' or 'not v4', or a version, such as 'jax>=0.11'"
                )
            if chip.endswith("+") and chip.removesuffix("+") not in _CHIPS:
                raise ValueError(f"{chip!r}: the chips after it are not known")

    @property
    def is_of_chip(self) -> bool:
        return not _VERSION.match(self.text)

    def missing(self, target: Target) -> str | None:
        """Return why the requirement is not met, or None if it is."""
        if not self.is_of_chip:
            return self._missing_version()
        found = _generation(target)
        met = any(_is(found, chip) for chip in self._alternatives())
        if met != self._is_negated:
            return None
        return f"requires {self.text}, and the target is {target.name}"

    @property
    def _is_negated(self) -> bool:
        return self.text.split()[:1] == ["not"]

    def _alternatives(self) -> list[str]:
        text = self.text.strip()
        chips = re.split(r"\s+or\s+", text.removeprefix("not ") if self._is_negated else text)
        return [chip.strip() for chip in chips]

    def _missing_version(self) -> str | None:
        wanted = Requirement(self.text)
        try:
            version = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            return f"requires {self.text}, and {wanted.name} is not installed"
        if wanted.specifier.contains(version, prereleases=True):
            return None
        return f"requires {self.text}, and {wanted.name} is {version}"


def parse(value: object, extra: Sequence[Target] = ()) -> tuple[Need, ...]:
    """Parse one requirement or several, all of which must be met.

    Raises:
      ValueError: an invalid one.
    """
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, tuple | list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"requires must be a string or a tuple of strings, not {value!r}")
    return tuple(Need(text.strip(), tuple(extra)) for text in texts)


def _generation(target: Target) -> str:
    """Return the chip of a target, which may also be a topology or this host."""
    for known in targets.BUILTIN:
        if known.device_kind == target.device_kind:
            return known.name
    return target.name


def _is(found: str, chip: str) -> bool:
    if not chip.endswith("+"):
        return found == chip
    order = list(_CHIPS)
    return found in order and order.index(found) >= order.index(chip.removesuffix("+"))
