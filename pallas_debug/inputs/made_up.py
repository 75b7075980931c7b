"""Values for arguments that are given only by shape, and their names in findings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pallas_debug.bridge.jaxprs import arrays
from pallas_debug.inputs import contents


@dataclass(frozen=True, kw_only=True)
class Filled:
    """Arguments with values.

    Attributes:
      named: arguments whose values were made up, such as `lengths (int32[2], zeros)`, by their
        number among the leaves of `(args, kwargs)`.
      integers: the made-up arguments that are integers or bools.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    named: Mapping[int, str] = field(default_factory=dict)
    integers: tuple[str, ...] = ()


def filled(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Filled:
    """Replace abstract arguments of a function with arrays; see `arrays.concrete`.

    Raises:
      UsageError: an array would be too large.
    """
    named, integers = {}, []
    names = arrays.names_of(function, args, kwargs)
    for leaf in arrays.abstract_leaves(args, kwargs):
        name = names[leaf.number]
        sizes = ",".join(map(str, leaf.shape))
        named[leaf.number] = f"{name} ({leaf.dtype}[{sizes}], {leaf.values})"
        if leaf.values != "key(0)":
            contents.refuse_size(f"the argument {name}", leaf.shape, leaf.dtype)
        if leaf.may_be_index:
            integers.append(named[leaf.number])
    made_args, made_kwargs = arrays.concrete(args, kwargs)
    return Filled(args=made_args, kwargs=made_kwargs, named=named, integers=tuple(integers))
