"""Values of arrays, created with numpy from lists, files and named fills, checked against the
dtype."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from pallas_debug import defaults
from pallas_debug.errors import UsageError
from pallas_debug.inputs import files
from pallas_debug.inputs.grammar import ArraySpec, FileSpec, FillSpec
from pallas_debug.quantities import size_text

Array = np.ndarray[Any, Any]

_iinfo: Any = ml_dtypes.iinfo
_finfo: Any = ml_dtypes.finfo


def made(spec: ArraySpec, dtype: np.dtype[Any] | None) -> Array:
    """Create the array of a spec with a fill.

    Raises:
      UsageError: the values do not fit the dtype or the shape, or the array is too large.
    """
    where = f"--arg {spec.text!r}"
    if isinstance(spec.fill, FileSpec):
        return _of_file(where, spec, files.read(spec.fill.path), dtype)
    assert dtype is not None
    if isinstance(spec.fill, list):
        values = _listed(where, spec.fill)
        shape = spec.shape if spec.shape is not None else values.shape
        if values.shape != shape:
            raise UsageError(
                f"{where}: the values have shape {_shape(values.shape)}, not {_shape(shape)}"
            )
        return converted(where, values, dtype)
    assert spec.shape is not None
    refuse_size(where, spec.shape, dtype)
    if isinstance(spec.fill, FillSpec):
        values = _filled(where, spec, spec.fill, dtype)
    else:
        values = np.full(spec.shape, _exact([spec.fill])[0])
    return converted(where, values, dtype)


def refuse_size(where: str, shape: tuple[int, ...], dtype: str | np.dtype[Any]) -> None:
    """Refuse to create an array that takes too much memory.

    Raises:
      UsageError: the array is too large; the message states the size and the limit.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size > defaults.MAX_INPUT_BYTES:
        raise UsageError(
            f"{where} takes {size_text(size)}, but an array with values may take at most "
            f"{size_text(defaults.MAX_INPUT_BYTES)}: pass a smaller shape; `dump` needs no values"
        )


def _of_file(where: str, spec: ArraySpec, values: Array, dtype: np.dtype[Any] | None) -> Array:
    if values.dtype.kind == "V":
        # numpy has no name for the dtypes of ml_dtypes, and writes only their bytes.
        if dtype is None:
            raise UsageError(
                f"{where} holds values of {values.dtype.itemsize} bytes without a dtype, as numpy "
                "writes bfloat16 and the like: name it, "
                f"as in bf16[{_sizes(values.shape)}]={spec.text}"
            )
        if values.dtype.itemsize != dtype.itemsize:
            raise UsageError(
                f"{where}: the file holds values of {values.dtype.itemsize} bytes, but {dtype} "
                f"has {dtype.itemsize}"
            )
        values = values.view(dtype)
    if values.dtype.kind not in "biufc" and not _is_ml(values.dtype):
        raise UsageError(f"{where} holds {values.dtype}, not numbers")
    if spec.shape is not None and values.shape != spec.shape:
        raise UsageError(
            f"{where}: the file has shape {_shape(values.shape)}, not {_shape(spec.shape)}"
        )
    return values if dtype is None else converted(where, values, dtype)


def converted(where: str, values: Array, dtype: np.dtype[Any]) -> Array:
    """Convert values to a dtype that can hold them; floats are rounded.

    Raises:
      UsageError: a value does not fit; the message names the first such value.
    """
    if values.dtype == dtype:
        return values
    kind = _kind(dtype)
    if kind in "iu":
        info: Any = _iinfo(dtype)
        if values.dtype.kind in "fcV":
            wide = values if values.dtype.kind == "c" else values.astype(np.float64)
            _refuse(
                where, values, wide != np.round(wide), f"is not an integer, as {dtype} requires"
            )
        _refuse(
            where,
            values,
            (values < info.min) | (values > info.max),
            f"does not fit {dtype}, which holds {info.min} to {info.max}",
        )
        return (
            values.astype(np.int64).astype(dtype) if dtype.itemsize == 1 else values.astype(dtype)
        )
    if kind == "b":
        _refuse(where, values, (values != 0) & (values != 1), "is not a bool: write True or False")
        return values.astype(bool)
    if values.dtype.kind == "c" and kind != "c":
        raise UsageError(f"{where}: complex numbers do not fit {dtype}")
    if kind == "c":
        return values.astype(dtype)
    wide = values.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = wide.astype(dtype)
    most = float(_finfo(dtype).max)  # dtypes without infinities may saturate at this
    too_large = np.abs(wide) > most * 1.0625
    lost = np.isfinite(wide) & (too_large | ~np.isfinite(narrow.astype(np.float64)))
    _refuse(where, values, lost, f"does not fit {dtype}, which holds up to {most:g}")
    back = narrow.astype(np.float64)
    lost = (np.isinf(wide) & ~np.isinf(back)) | (np.isnan(wide) & ~np.isnan(back))
    _refuse(where, values, lost, f"is not a value of {dtype}")
    return narrow


def _refuse(where: str, values: Array, wrong: Any, why: str) -> None:
    places = np.argwhere(np.asarray(wrong))
    if len(places):
        at = tuple(int(i) for i in places[0])
        index = f"[{', '.join(map(str, at))}]" if at else ""
        raise UsageError(f"{where}: the value {values[at]}{f' at {index}' if index else ''} {why}")


def _listed(where: str, values: list[Any]) -> Array:
    try:
        found = np.array(values, dtype=object)
    except ValueError:
        found = None
    if found is None or any(isinstance(one, list) for one in found.flat):
        raise UsageError(f"{where}: the inner lists have different lengths")
    return _exact(found)


def _exact(values: Any) -> Array:
    """Convert numbers to a numpy dtype that represents them exactly: integers stay integers."""
    flat = np.asarray(values, dtype=object)
    kinds = {type(value) for value in flat.flat}
    if complex in kinds:
        return flat.astype(np.complex128)
    if float in kinds:
        return flat.astype(np.float64)
    if all(-(2**63) <= value < 2**63 for value in flat.flat):
        return flat.astype(np.int64)
    return flat


def _filled(where: str, spec: ArraySpec, fill: FillSpec, dtype: np.dtype[Any]) -> Array:
    assert spec.shape is not None
    shape, numbers = spec.shape, fill.numbers
    size = math.prod(shape)
    rng = np.random.default_rng([0, spec.number])
    if fill.name in ("zeros", "ones"):
        return np.full(shape, int(fill.name == "ones"), dtype)
    if fill.name == "arange":
        start, step = _both(numbers, 0, 1)
        return np.asarray(_exact([start])[0] + np.arange(size) * _exact([step])[0]).reshape(shape)
    if fill.name == "permutation":
        return np.asarray(rng.permutation(size)).reshape(shape)
    if fill.name == "randint":
        low, high = (numbers[0], numbers[1]) if len(numbers) == 2 else (0, numbers[0])
        if not (isinstance(low, int) and isinstance(high, int) and low < high):
            raise UsageError(
                f"{where}: randint takes two integers, the smaller one first: values are at least "
                "the first and less than the second"
            )
        try:
            return np.asarray(rng.integers(low, high, shape, np.int64))
        except (ValueError, OverflowError) as error:
            raise UsageError(f"{where}: {error}") from error
    if _kind(dtype) in "iub":
        raise UsageError(
            f"{where}: {fill.name} produces floats; for {dtype}, use randint(low, high)"
        )
    if fill.name == "normal":
        mean, deviation = _both(numbers, 0.0, 1.0)
        return np.asarray(rng.standard_normal(shape, np.float32) * deviation + mean)
    low, high = _both(numbers, 0.0, 1.0)
    return np.asarray(rng.random(shape, np.float32) * (high - low) + low)


def _both(numbers: Sequence[float], first: float, second: float) -> tuple[float, float]:
    """Return the two numbers of a fill, with defaults for missing ones."""
    given = [*numbers, *(first, second)[len(numbers) :]]
    return given[0], given[1]


def _kind(dtype: np.dtype[Any]) -> str:
    """numpy's letter for the kind of a dtype, for those of ml_dtypes too."""
    if not _is_ml(dtype):
        return dtype.kind
    if dtype.name.startswith("uint"):
        return "u"
    return "i" if dtype.name.startswith("int") else "f"


def _is_ml(dtype: np.dtype[Any]) -> bool:
    return dtype.type.__module__.partition(".")[0] == "ml_dtypes"


def _shape(shape: tuple[int, ...]) -> str:
    return f"[{_sizes(shape)}]"


def _sizes(shape: tuple[int, ...]) -> str:
    return ",".join(map(str, shape))
