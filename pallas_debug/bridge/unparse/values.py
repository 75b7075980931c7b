"""Unparser for numbers, dtypes, memory spaces and parameters.

Raises `CannotUnparse` for values that have no text form.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.bridge.jaxcompat import dtypes, pallas_core

_PUBLIC: dict[str, types.ModuleType] = {"pl": pl, "pltpu": pltpu, "lax": lax, "jnp": jnp}
"""Modules imported by a program, by their names in it."""

_MAX_ELEMENTS = 64
"""Maximum elements of an array that is written inline."""


class CannotUnparse(Exception):
    """Part of a kernel cannot be written as program text; the message names it."""


def number(value: Any) -> str:
    """Write a scalar as a Python literal, whose dtype follows from the other operand."""
    plain = np.asarray(value).item()
    if isinstance(plain, float) and not math.isfinite(plain):
        return "jnp.nan" if math.isnan(plain) else ("jnp.inf" if plain > 0 else "-jnp.inf")
    return repr(plain)


def constant(value: Any) -> str:
    """Write a number or small array with its dtype."""
    array = np.asarray(value)
    name = array.dtype.name
    if array.shape:
        if array.size > _MAX_ELEMENTS:
            raise CannotUnparse(f"a constant of shape {array.shape}")
        return f"np.array({parameter(array.tolist())}, {dtype(array.dtype)})"
    if name == "bool":
        return f"np.bool_({number(array)})"
    if hasattr(np, name):
        return f"np.{name}({number(array)})"
    return f"np.array({number(array)}, {dtype(array.dtype)})"


def dtype(value: Any) -> str:
    """Write a dtype: `jnp.float32`."""
    if dtypes.issubdtype(value, dtypes.extended):
        raise CannotUnparse(f"values of dtype {value}")
    name = jnp.dtype(value).name
    return "jnp.bool_" if name == "bool" else f"jnp.{name}"


def is_default(memory_space: Any) -> bool:
    return memory_space is None or any(n in str(memory_space) for n in ("Device", "default"))


def memory_space(value: Any) -> str:
    """Write a memory space: `pltpu.VMEM`."""
    for module in ("pltpu", "pl"):
        for name in ("VMEM", "SMEM", "HBM", "ANY", "SEMAPHORE", "CMEM", "VMEM_SHARED", "HOST"):
            if vars(_PUBLIC[module]).get(name) is value:
                return f"{module}.{name}"
    raise CannotUnparse(f"the memory space {value}")


def buffer(aval: Any) -> str:
    """Write the type of a scratch buffer or semaphore: `pltpu.VMEM((8, 128), jnp.float32)`."""
    kinds = {
        pallas_core.Semaphore: "REGULAR",
        pallas_core.BarrierSemaphore: "BARRIER",
        type(pltpu.SemaphoreType.DMA.dtype): "DMA",
    }
    kind = kinds.get(type(aval.dtype))
    if kind is not None:
        return f"pltpu.SemaphoreType.{kind}({parameter(tuple(aval.shape))})"
    space = memory_space(aval.memory_space)
    return f"{space}({parameter(tuple(aval.shape))}, {dtype(aval.dtype)})"


def array_type(aval: Any) -> str:
    """Write the type of an argument or result: `jax.ShapeDtypeStruct((8, 128), jnp.float32)`."""
    shape = parameter(tuple(aval.shape))
    space = getattr(aval, "memory_space", None)
    if not is_default(space):
        return f"{memory_space(space)}({shape}, {dtype(aval.dtype)})"
    return f"jax.ShapeDtypeStruct({shape}, {dtype(aval.dtype)})"


def parameter(value: Any) -> str:
    """Write a parameter of a primitive or of a kernel."""
    if value is None or isinstance(value, (bool, str, bytes)):
        return repr(value)
    if isinstance(value, (int, float, np.number, np.bool_)):
        return number(value)
    if isinstance(value, enum.Enum):
        return f"{_class_name(type(value))}.{value.name}"
    if isinstance(value, (np.dtype, type)):
        return dtype(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{parameter(k)}: {parameter(v)}" for k, v in value.items()) + "}"
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return record(value, {name: getattr(value, name) for name in value._fields})
    if isinstance(value, (tuple, list)):
        items = [*map(parameter, value)]
        return tuple_of(items) if isinstance(value, tuple) else f"[{', '.join(items)}]"
    if isinstance(value, (np.ndarray, jax.Array)):
        return constant(value)
    if dataclasses.is_dataclass(value):
        given = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        defaults = {f.name: f.default for f in dataclasses.fields(value)}
        return record(value, {name: at for name, at in given.items() if at != defaults[name]})
    raise CannotUnparse(f"a {type(value).__name__}")


def tuple_of(texts: Sequence[str]) -> str:
    """Write a tuple of expressions: `(a, b)`, `(a,)`."""
    return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"


def record(value: Any, fields: Mapping[str, Any]) -> str:
    """Write an object of one of jax's public classes with its fields."""
    return f"{_class_name(type(value))}({keywords(fields.items())})"


def keywords(pairs: Iterable[tuple[str, Any]]) -> str:
    """Write keyword arguments: `axis=1, reverse=False`."""
    return ", ".join(f"{name}={parameter(value)}" for name, value in pairs)


def _class_name(kind: type) -> str:
    for name, module in _PUBLIC.items():
        if vars(module).get(kind.__name__) is kind:
            return f"{name}.{kind.__name__}"
    raise CannotUnparse(f"a {kind.__name__}")
