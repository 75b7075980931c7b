"""Support for kernels in jax's `checkify`.

Up to jax 0.10.0 `checkify` had a rule for `pallas_call`; since 0.10.1 it assumes that a kernel
cannot fail. The rule here calls the instrumented kernel (`instrument.py`) and converts its first
failure to the error that jax would have raised. An error from before the kernel takes precedence.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pallas_debug.bridge import jaxcompat, patches
from pallas_debug.bridge.instrument import checkify_errors, instrument
from pallas_debug.bridge.instrument.sites import RecordLayout, failure_values
from pallas_debug.bridge.jaxcompat import checkify, mpmd, pallas_call
from pallas_debug.bridge.jaxprs.params import name_of
from pallas_debug.errors import PallasDebugWarning

_installed = threading.Event()


class UncheckedKernel(PallasDebugWarning):
    """Warning that `checkify` could not check a kernel."""


def install() -> None:
    """Make `checkify.checkify` check the inside of kernels."""
    if not _installed.is_set():
        _installed.set()
        patches.install(patches.CHECKIFY)


def uninstall() -> None:
    """Restore jax's behaviour, which misses all errors in kernels."""
    if _installed.is_set():
        _installed.clear()
        patches.uninstall(patches.CHECKIFY)


def rule(_: Any, primitive: str) -> Callable[..., tuple[Any, Sequence[Any]]]:
    """Return our rule for a Pallas primitive in jax's `checkify` table."""
    bound = {"pallas_call": pallas_call.pallas_call_p, "mpmd_map": mpmd.mpmd_map_p}[primitive]
    if jaxcompat.checks_take_context():
        return lambda context, error, enabled, *args, **params: _checked(
            functools.partial(checkify.assert_func, context), bound, error, enabled, args, params
        )
    return lambda error, enabled, *args, **params: _checked(
        checkify.assert_func, bound, error, enabled, args, params
    )


def _checked(
    assert_: Callable[..., Any],
    primitive: Any,
    error: Any,
    enabled: Any,
    args: Sequence[Any],
    params: dict[str, Any],
) -> tuple[Any, Sequence[Any]]:
    checks = [name for name, error in checkify_errors.CATEGORIES.items() if error in enabled]
    try:
        made = instrument.instrument(params, checks) if checks else None
    except instrument.CannotInstrument as reason:
        _unchecked(params, str(reason))
        made = None
    if made is None:
        return error, primitive.bind(*args, **params)
    for inner in made.not_entered:
        _unchecked(params, f"the body of its `{inner}` is not checked")
    *outputs, rows = made.bind(primitive, args)
    return _with_first(assert_, error, made.layout, rows), outputs


def _unchecked(params: Mapping[str, Any], reason: str) -> None:
    warnings.warn(
        f"checkify does not see into kernel `{name_of(params)}`: {reason}. The absence of errors "
        "there means nothing.",
        UncheckedKernel,
        stacklevel=3,
    )


def _with_first(assert_: Callable[..., Any], error: Any, layout: RecordLayout, rows: Any) -> Any:
    """Return `error` with the kernel's first failure, in grid order, asserted on top."""
    if not layout.sites:
        return error
    rows = jax.lax.reshape(rows, (layout.slices, layout.words))
    record = rows[jnp.argmax(rows[:, 0] > 0)]
    for i, site in enumerate(layout.sites):
        new = checkify_errors.error_of(site, failure_values(site, layout, record))
        error = assert_(error, (record[0] > 0) & (record[1] == i), new)
    return error
