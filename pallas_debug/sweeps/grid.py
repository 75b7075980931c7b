"""Settings of a sweep: every combination of the values of several keyword arguments."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pallas_debug import defaults
from pallas_debug.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Values of the swept arguments."""

    values: Mapping[str, Any]

    @cached_property
    def texts(self) -> dict[str, str]:
        """The values as users write them."""
        return {name: text_of(value) for name, value in self.values.items()}

    def __str__(self) -> str:
        return ", ".join(f"{name}={text}" for name, text in self.texts.items()) or "no settings"


def settings(over: Mapping[str, Sequence[Any]]) -> list[Setting]:
    """Return every combination, in the order of the values; the last argument varies fastest.

    Raises:
      UsageError: there is no argument, an argument has no values or a value twice, or there are too
        many combinations.
    """
    if not over:
        raise UsageError(
            "a sweep needs an argument to vary: --over block_q=128,256, or over={'block_q': …}"
        )
    if not isinstance(over, Mapping):
        raise UsageError(
            f"over={over!r} is not a dict of arguments and their values: over={{'block_q': …}}"
        )
    for name, values in over.items():
        if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
            raise UsageError(f"over[{name!r}] is {values!r}, not a list of values")
        if not values:
            raise UsageError(f"{name} has no values to sweep over")
        texts = [text_of(value) for value in values]
        repeated = next((text for text in texts if texts.count(text) > 1), None)
        if repeated is not None:
            raise UsageError(f"{name} has the value {repeated} twice")
    count = math.prod(len(values) for values in over.values())
    if count > defaults.MAX_SETTINGS:
        sizes = " x ".join(str(len(values)) for values in over.values())
        raise UsageError(
            f"{sizes} is {count:,} settings, more than {defaults.MAX_SETTINGS:,}. Sweep over fewer "
            "values first, then closer to the best of them"
        )
    combinations = itertools.product(*over.values())
    return [Setting(values=dict(zip(over, one, strict=True))) for one in combinations]


def text_of(value: Any) -> str:
    """Return a value as a short text: a dtype by its name, anything else as Python writes it."""
    if isinstance(value, type):
        return value.__name__
    name = getattr(value, "name", None)  # of a dtype
    return name if isinstance(name, str) else repr(value)
