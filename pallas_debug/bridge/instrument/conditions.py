"""Conditions of the checks, from operations that every core supports, and index formatting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src import core as jax_core
from jax._src.state import indexing

from pallas_debug.bridge.instrument.flow import Comparison
from pallas_debug.bridge.instrument.sites import slice_text


def is_nan(value: Any) -> Any:
    """Mask of the NaNs in an array of floats."""
    value = wide(value)
    return value != value


def wide(value: Any) -> Any:
    """Widen narrow numbers to 32 bits, because not every core can compare them."""
    dtype = jnp.result_type(value)
    if dtype.itemsize < 4:
        return value.astype("float32" if jnp.issubdtype(dtype, jnp.floating) else "int32")
    return value


def is_transformed(value: Any) -> bool:
    """Return whether a value is a transformed view of a ref."""
    return hasattr(value, "ref") and hasattr(value, "transforms")


def is_float(value: Any) -> bool:
    """Return whether a value holds floats of any width."""
    return bool(jnp.issubdtype(jnp.result_type(value), jnp.floating))


def may_be_filled(value: Any) -> bool:
    """Return whether a value has a dtype with a fill value: an integer or a boolean."""
    dtype = jnp.result_type(value)
    return bool(jnp.issubdtype(dtype, jnp.integer)) or dtype == jnp.bool_


def is_fill(value: Any) -> Any:
    """Mask of the integers that equal the fill value of unwritten memory."""
    return value == np.array(fill_of(jnp.result_type(value)), jnp.result_type(value))


def fill_of(dtype: Any) -> int:
    """Integer with which HLO interpret mode fills scratch and outputs."""
    return int(jnp.iinfo(dtype).min)


def has_bad_constant(is_bad: Callable[[Any], Any], inputs: Sequence[Any]) -> bool:
    """Return whether a constant in the program text already satisfies `is_bad`.

    Evaluated by numpy: jax cannot run operations while it traces the inside of a `shard_map`.
    """
    constants = (x for x in inputs if not isinstance(x, jax_core.Tracer) and is_float(x))
    return any(bool(np.any(is_bad(np.asarray(x)))) for x in constants)


def is_infinite(value: Any) -> Any:
    """Mask of the infinities of either sign in an array of floats."""
    value = wide(value)
    size = np.abs(value) if isinstance(value, np.ndarray) else lax.abs(value)
    return size == np.float32(np.inf)


def one_where(failed: Any, value: Any) -> Any:
    """Return the largest value that failed."""
    if jnp.ndim(value) == 0:
        return value
    lowest = jnp.float32(-jnp.inf)
    return jnp.max(jnp.where(failed, value.astype("float32"), lowest)).astype("int32")


def is_outside(start: Any, last: int) -> Any:
    """Return whether an index is negative or greater than `last`, computed in its own dtype."""
    dtype = jnp.result_type(start)
    if jnp.issubdtype(dtype, jnp.floating):  # accepted only by an interpreter
        return (start < 0) | (start > last)
    limits = jnp.iinfo(dtype)
    above = start > np.array(last, dtype) if last < limits.max else lax.full_like(start, 0, bool)
    return above if limits.min == 0 else (start < np.array(0, dtype)) | above


def reaches_outside(transform: Any, dim: int, mask: Any) -> Any:
    """Return whether a masked access selects elements outside a dimension with the mask set."""
    index, bound = transform.indices[dim], transform.shape[dim]
    common = tuple(transform.int_indexer_shape)
    slices = [isinstance(one, indexing.Slice) for one in transform.indices]
    shape = (*common, *(one.size for one in transform.indices if isinstance(one, indexing.Slice)))
    if slices[dim]:
        axis = len(common) + sum(slices[:dim])
        along = [index.size if n == axis else 1 for n in range(len(shape))]
        start = jnp.asarray(index.start).astype(jnp.int32)
        positions = start + lax.broadcasted_iota(jnp.int32, along, axis) * index.stride
    else:
        positions = jnp.asarray(index)
        positions = positions.reshape(*positions.shape, *[1] * sum(slices))
    outside = is_outside(positions, bound - 1)
    return jnp.any(jnp.broadcast_to(outside, shape) & jnp.broadcast_to(mask, shape))


def first_outside(start: Any, last: int) -> list[Any]:
    """Return a scalar index; of an array, the maximum if too large, otherwise the minimum."""
    if jnp.ndim(start) == 0:
        return [start]
    numbers = start.astype("float32")
    above = jnp.max(numbers)
    return [jnp.where(above > last, above, jnp.min(numbers)).astype("int32")]


def kept_dtype(value: Any) -> str:
    """Dtype in which a recorded scalar is read back."""
    dtype = jnp.result_type(value)
    if dtype == jnp.bool_:
        return "bool"
    if jnp.issubdtype(dtype, jnp.floating):
        return "float32"
    return "uint32" if dtype == jnp.uint32 else "int32"


def block_size(entry: Any) -> int | None:
    """Block size along one dimension; None if the dimension is squeezed."""
    if entry is None or type(entry).__name__ == "Squeezed":
        return None
    return int(getattr(entry, "block_size", entry))


def dims(transform: Any) -> tuple[str, ...]:
    """Format each index of an access; `…` for one known only at run time."""
    texts = []
    for index in transform.indices:
        is_slice = isinstance(index, indexing.Slice)
        start, size = (index.start, index.size) if is_slice else (index, 1)
        if isinstance(start, jax_core.Tracer) or jnp.ndim(start):
            texts.append("…")
        else:
            texts.append(
                slice_text(int(start), size, index.stride) if is_slice else f"{int(start)}"
            )
    return tuple(texts)


def space(aval: Any, default: str) -> str:
    space = getattr(aval, "memory_space", None)
    name = str(getattr(space, "value", space or "default")).lower()
    return default if name == "default" else name


def first_true(mask: Any) -> Any:
    """Flat index of the first element that is set."""
    flat = lax.reshape(mask, (int(np.prod(jnp.shape(mask))),))
    return lax.argmax(flat.astype("int32"), 0, jnp.int32)


def element(value: Any, position: Any, shape: Sequence[int]) -> Any:
    """Element of an array that broadcasts against `shape`, at a flat index into that shape."""
    if not jnp.ndim(value):
        return value
    starts, left = [], position
    for size in reversed(shape):
        starts.append(lax.rem(left, np.int32(size)))
        left = lax.div(left, np.int32(size))
    starts = starts[: jnp.ndim(value)][::-1]
    at = [s if n > 1 else np.int32(0) for s, n in zip(starts, jnp.shape(value), strict=True)]
    return lax.reshape(lax.dynamic_slice(value, at, (1,) * jnp.ndim(value)), ())


def broadcasts(value: Any, shape: Sequence[int]) -> bool:
    """Return whether an operand of an elementwise operation is a scalar or is broadcast."""
    own = jnp.shape(value)
    return not own or (
        len(own) == len(shape) and all(a in (1, b) for a, b in zip(own, shape, strict=True))
    )


@dataclass(frozen=True, kw_only=True)
class Example:
    """The first element at which an elementwise operation fails, to be recorded.

    Attributes:
      shape: shape of its result.
      failed: computes the mask of its failures.
      operands: arrays that broadcast against the result.
      ranges: other operands, whose smallest and largest numbers are recorded.
    """

    shape: tuple[int, ...]
    failed: Callable[[], Any]
    operands: tuple[Any, ...]
    ranges: tuple[Any, ...] = ()

    @property
    def kept(self) -> tuple[tuple[str, str], ...]:
        """Names and dtypes of the recorded values."""
        position = (("element", "int32"),) if self.shape else ()
        operands = ((f"{i}", kept_dtype(x)) for i, x in enumerate(self.operands))
        ends = ((f"{end}{i}", "float32") for i in range(len(self.ranges)) for end in ("min", "max"))
        return (*position, *operands, *ends)

    @property
    def details(self) -> dict[str, Any]:
        return {"result": self.shape}

    @property
    def kind(self) -> tuple[Any, ...]:
        """Key that is equal for examples of the same shapes and types."""
        arrays = (self.operands, self.ranges)
        return self.shape, *(
            tuple((jnp.shape(x), jnp.result_type(x)) for x in values) for values in arrays
        )

    def values(self) -> list[Any]:
        ends = [end(wide(x)) for x in self.ranges for end in (jnp.min, jnp.max)]
        if not self.shape:
            return [*(jnp.asarray(x) for x in self.operands), *ends]
        position = first_true(self.failed())
        return [position, *(element(x, position, self.shape) for x in self.operands), *ends]


def first_of(examples: Sequence[Example], is_set: Sequence[Any]) -> Example:
    """The first of several examples of one kind whose flag is set; otherwise, the last."""
    *others, last = examples
    flags = is_set[: len(others)]

    def chosen(values: Sequence[Any]) -> Any:
        found = values[-1]
        for flag, value in zip(reversed(flags), reversed(values[:-1]), strict=True):
            found = jnp.asarray(lax.select(flag, jnp.asarray(value), jnp.asarray(found)))
        return found

    return Example(
        shape=last.shape,
        failed=lambda: chosen([e.failed() for e in examples]),
        operands=tuple(map(chosen, zip(*(e.operands for e in examples), strict=True))),
        ranges=tuple(map(chosen, zip(*(e.ranges for e in examples), strict=True))),
    )


def example_of(comparison: Comparison) -> Example | None:
    """The first element at which a comparison is false."""
    sides = (comparison.left, comparison.right)
    shape = np.broadcast_shapes(*map(jnp.shape, sides))
    if not all(broadcasts(x, shape) for x in sides):
        return None
    compare = getattr(lax, comparison.name)

    def failed() -> Any:
        left, right = (jnp.broadcast_to(x, shape) for x in sides)
        return ~compare(left, right)

    return Example(shape=shape, failed=failed, operands=sides)


def recorded(scalars: Sequence[Any], example: Example | None) -> list[Any]:
    """Values recorded for a user's check: those of its message, then those of its condition."""
    return [*scalars, *(example.values() if example is not None else ())]
