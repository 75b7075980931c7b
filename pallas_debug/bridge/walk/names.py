"""Names of the installed Pallas, and current replacements of removed ones."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from types import ModuleType

PALLAS = "jax.experimental.pallas"

_ALIASES = {PALLAS: "pl", f"{PALLAS}.tpu": "pltpu"}
"""Usual aliases of the modules, in the order in which a replacement is searched for."""


def is_pallas(module: str) -> bool:
    """Return whether a module is Pallas, or one of its submodules."""
    return module == PALLAS or module.startswith(f"{PALLAS}.")


def missing(module: str, name: str) -> str | None:
    """Return jax's message about a name that a Pallas module lacks.

    None if the name exists, or if the module does not exist in this jax.
    """
    found = _module(module)
    if found is None or _is_module(f"{module}.{name}"):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a deprecated name still exists
            getattr(found, name)
    except AttributeError as error:
        return str(error)
    return None


def replacement(module: str, name: str) -> str | None:
    """Return the current name of a removed Pallas name, as written in code; None if unknown.

    Verified to exist: in the same module without the `TPU` prefix, or in another module.
    """
    short = name.removeprefix("TPU")
    places = [(module, short), *((other, name) for other in _ALIASES if other != module)]
    return next((f"{_ALIASES[m]}.{n}" for m, n in places if m in _ALIASES and _has(m, n)), None)


def _has(module: str, name: str) -> bool:
    found = _module(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return found is not None and hasattr(found, name)


def _is_module(name: str) -> bool:
    """Return whether a module exists, even if it is neither imported nor importable here."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the part before the last dot is not a package
        return False


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except Exception:  # noqa: BLE001 - a module for another machine may raise anything on import
        return None
