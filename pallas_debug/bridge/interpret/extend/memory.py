"""Accesses to buffers of TPU interpret mode through references that jax's own functions reject.

Replacements for jax's host callbacks `get`, `store` and `swap`, which also run the two halves of a
DMA. They pass plain chains of indexers to jax.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter
from jax._src.pallas.mosaic.interpret import utils
from jax._src.state import indexing

from pallas_debug.bridge.interpret.extend import padding
from pallas_debug.bridge.interpret.extend.views import RefView, is_plain

Function = Callable[..., Any]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Adds:
    """Last transform of a destination, if the DMA adds to it."""


def reading(by_jax: Function) -> Function:
    """Replacement for `get`, with a mask."""

    def get(
        token: Any,
        device_id: Any,
        local_core_id: Any,
        memory_space: Any,
        buffer_id: Any,
        transforms: Any,
        block_indices: Any = None,
        grid_loop_idx: Any = None,
        mask: Any = None,
        **options: Any,
    ) -> Any:
        is_padding = mask is None and _is_padding(memory_space, transforms)
        if mask is None and is_plain(transforms) and not is_padding and not is_empty(transforms):
            at = token, device_id, local_core_id, memory_space, buffer_id, transforms
            return inspect.unwrap(by_jax)(*at, block_indices, grid_loop_idx, **options)
        access = _Access(device_id, local_core_id, memory_space, buffer_id, transforms, options)
        mask = None if mask is None else np.asarray(mask)
        values = access.read(mask, may_leave=is_padding)
        access.check(writes=False)
        return token, values

    return interpreter.fail_on_exception(get)  # type: ignore[no-any-return]


def storing(by_jax: Function) -> Function:
    """Replacement for `store`."""

    def store(
        token: Any,
        device_id: Any,
        local_core_id: Any,
        memory_space: Any,
        buffer_id: Any,
        transforms: Any,
        val: Any,
        block_indices: Any = None,
        grid_loop_idx: Any = None,
        **options: Any,
    ) -> Any:
        if _is_padding(memory_space, transforms):
            transforms = padding.within_array(concrete(without_adds(transforms)))
            val = padding.cut(np.asarray(val), transforms)
        if is_plain(transforms):
            at = token, device_id, local_core_id, memory_space, buffer_id, transforms
            return inspect.unwrap(by_jax)(*at, val, block_indices, grid_loop_idx, **options)
        access = _Access(device_id, local_core_id, memory_space, buffer_id, transforms, options)
        access.swap(np.array(val), None)
        access.check(writes=True)
        return token

    return interpreter.fail_on_exception(store)  # type: ignore[no-any-return]


def swapping(by_jax: Function) -> Function:
    """Replacement for `swap`."""

    def swap(
        token: Any,
        device_id: Any,
        local_core_id: Any,
        memory_space: Any,
        buffer_id: Any,
        transforms: Any,
        val: Any,
        mask: Any,
        **options: Any,
    ) -> Any:
        if is_plain(transforms) and mask is None:
            at = token, device_id, local_core_id, memory_space, buffer_id, transforms
            return inspect.unwrap(by_jax)(*at, val, mask, **options)
        # jax takes every dimension of a masked store for the first one in its check of the bounds.
        access = _Access(device_id, local_core_id, memory_space, buffer_id, transforms, options)
        before = access.swap(np.array(val), None if mask is None else np.asarray(mask))
        access.check(writes=True)
        return token, before

    return interpreter.fail_on_exception(swap)  # type: ignore[no-any-return]


def concrete(transforms: Any) -> Any:
    """Return transforms with Python integers as values.

    Raises:
      ValueError: an indexer is an array.
    """
    try:
        return jax.tree.map(int, transforms)
    except TypeError as error:
        raise ValueError("Advanced indexers are not supported on TPU") from error


def _is_padding(memory_space: Any, transforms: Any) -> bool:
    if any(isinstance(transform, Adds) for transform in transforms):
        return False
    return padding.reaches_padding(memory_space, concrete(transforms))


def is_empty(transforms: Any) -> bool:
    """Return whether an access selects nothing; at the end of an array, jax rejects it."""
    return any(
        isinstance(index, indexing.Slice) and int(index.size) == 0
        for transform in transforms
        for index in getattr(transform, "indices", ())
    )


def without_adds(transforms: Sequence[Any]) -> Sequence[Any]:
    return tuple(transform for transform in transforms if not isinstance(transform, Adds))


class _Access:
    """An access to a buffer in jax's callbacks, by a core or by a DMA."""

    def __init__(
        self,
        device_id: Any,
        local_core_id: Any,
        memory_space: Any,
        buffer_id: Any,
        transforms: Any,
        options: dict[str, Any],
    ) -> None:
        device, core = int(device_id), int(local_core_id)
        space = interpreter.TPU_MEMORY_SPACE_NAMES[int(memory_space)]
        self._memory = interpreter._get_shared_memory()
        self._key = (
            space,
            int(buffer_id),
            device,
            interpreter._local_core_id_or_zero_if_hbm(core, space),
        )
        self._adds = any(isinstance(transform, Adds) for transform in transforms)
        self._transforms = without_adds(concrete(transforms))
        self._options = options
        by_device, by_core = options.get("src_device_id"), options.get("src_local_core_id")
        self._thread = (
            device if by_device is None else int(by_device),
            core if by_core is None else int(by_core),
        )
        self._clock = options.get("clock")
        if self._clock is None and self._memory.detect_races:
            self._clock = self._tick(device, core)
        self._ranges: list[Any] = []

    def read(
        self, mask: np.ndarray[Any, Any] | None, *, may_leave: bool = False
    ) -> np.ndarray[Any, Any]:
        may_leave = may_leave or self._memory.out_of_bounds_reads != "raise" or mask is not None
        with self._memory.lock:
            view = self._view(is_padded=may_leave)
            missing = view.is_missing()
            leaves = mask is not None and missing is not None and (missing & mask).any()
            if leaves and self._memory.out_of_bounds_reads == "raise":
                self._view()  # raises
            default = None
            if missing is not None:
                default = utils.get_uninitialized_value(
                    view.dtype, self._memory.uninitialized_memory
                )
            self._note(view)
            return view.read(default)

    def swap(
        self, values: np.ndarray[Any, Any], mask: np.ndarray[Any, Any] | None
    ) -> np.ndarray[Any, Any]:
        with self._memory.lock:
            view = self._view(is_padded=mask is not None)
            missing = view.is_missing()
            if missing is not None and (missing & mask).any():
                self._view()  # raises
            before = view.read()
            if self._adds:
                values = before + values
            view.write(values if mask is None else np.where(mask, values, before))
            self._note(view)
        return before if mask is None else np.where(mask, before, values)

    def check(self, *, writes: bool) -> None:
        """Pass the access to the race detector."""
        if not self._memory.detect_races:
            return
        races = interpreter.races
        function = races.check_write if writes else races.check_read
        # Since jax 0.12 device and core are one argument.
        thread = (
            (self._thread,) if "thread" in _parameters(type(races).check_read) else self._thread
        )
        for range_ in self._ranges:
            function(
                *thread,
                self._clock,
                self._key,
                range_,
                source_info=self._options.get("source_info"),
            )

    def _view(self, *, is_padded: bool = False) -> RefView:
        buffer = self._memory.mem[self._key]
        shape = buffer.logical_shape
        return RefView(buffer.content, self._transforms, logical_shape=shape, is_padded=is_padded)

    def _note(self, view: RefView) -> None:
        if self._memory.detect_races:
            self._ranges = view.ranges()

    def _tick(self, device: int, core: int) -> Any:
        """Increment the core's clock, as every access does."""
        by_thread = "thread" in _parameters(type(self._memory).get_buffer_content)
        thread = (device, core) if by_thread else self._memory.get_global_core_id(device, core)
        nothing = tuple(slice(0, 0) for _ in self._memory.mem[self._key].logical_shape)
        return self._memory.get_buffer_content(self._key, nothing, thread)[2]


@functools.cache
def _parameters(function: Function) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)
