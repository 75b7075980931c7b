"""Which names the installed Pallas has, and where one that is missed stands today."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from types import ModuleType

PALLAS = "jax.experimental.pallas"

_ALIASES = {PALLAS: "pl", f"{PALLAS}.tpu": "pltpu"}
"""What a reader knows the modules by, in the order in which a name is looked for in them."""


def is_pallas(module: str) -> bool:
    """Whether a module is Pallas, or one of its own."""
    return module == PALLAS or module.startswith(f"{PALLAS}.")


def missing(module: str, name: str) -> str | None:
    """What jax says of a name that a module of Pallas does not have.

    None where it has it, and where that cannot be told: there is no such module here.
    """
    found = _module(module)
    if found is None or _is_module(f"{module}.{name}"):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a name that is deprecated is there
            getattr(found, name)
    except AttributeError as error:
        return str(error)
    return None


def replacement(module: str, name: str) -> str | None:
    """What a name of Pallas is called today, as one writes it; None where that is not known.

    It is there: in the same module without the `TPU` in front, or else in another one.
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
    """Whether there is such a module; it is no attribute before it is imported, and need not be
    one that can be imported here."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # what is in front of the last dot is no package
        return False


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except Exception:  # noqa: BLE001 - one for another machine may raise anything as it is loaded
        return None
