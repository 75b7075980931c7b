"""Text of a kernel's prints, formatted like jax's."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pallas_debug.bridge.jaxcompat import debugging
from pallas_debug.bridge.jaxprs import nested
from pallas_debug.bridge.jaxprs.params import jaxprs_of

_MANY = 64
"""Array size (elements) above which a record keeps only the edges."""


def prints(params: Mapping[str, Any]) -> bool:
    """Return whether a kernel prints, given the parameters of its primitive."""
    return any("debug_print" in nested.primitives(jaxpr) for jaxpr in jaxprs_of(params))


def shown(values: Sequence[np.ndarray]) -> tuple[str, ...]:
    """Each value as stored in a record: large arrays with only their edges."""
    return tuple(np.array2string(value, threshold=_MANY) for value in values)


def text(params: Any, given: Sequence[np.ndarray]) -> str:
    """Format a print like jax."""
    args, kwargs = debugging.merge_callback_args(params["in_tree"], given, params["static_args"])
    options = {k: v for k, v in dict(params["np_printoptions"]).items() if k != "legacy"}
    with np.printoptions(**options):
        if params["has_placeholders"]:
            with contextlib.suppress(IndexError, KeyError, ValueError):
                return str(params["fmt"].format(*args, **kwargs))
        return " ".join([params["fmt"], *(str(a) for a in (*args, *kwargs.values()))])
