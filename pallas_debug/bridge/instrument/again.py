"""Second run of a kernel, with code that records what failed and where.

That code takes XLA longer to compile than the kernel itself and is rarely needed. In HLO interpret
mode a kernel is a function of its operands, so it first runs with a tripwire
(`recording.Tripwire`); the code here is compiled only once that is triggered.

The second run starts from the first run's callback, which occupies a thread of jax's runtime, and
uses a CPU client of its own; otherwise it might wait for that very thread.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import checkify, compiler, config, effects
from jax._src import core as jax_core
from jax._src.lib import xla_client
from jax._src.sharding_impls import SingleDeviceSharding
from jax._src.state.types import RefEffect, WriteEffect

from pallas_debug.bridge import patches
from pallas_debug.bridge.instrument import conditions, instrument
from pallas_debug.bridge.instrument.recording import CERTAIN
from pallas_debug.bridge.instrument.sites import RecordLayout, SiteFailure
from pallas_debug.bridge.interpret import interpret
from pallas_debug.bridge.interpret.params import is_hlo
from pallas_debug.bridge.jaxprs import rewrite

_OWN_EFFECTS = (effects.JaxprInputEffect, checkify.ErrorEffect)
"""Effects of a kernel on its own refs, and of the checks that we strip from it."""


_OF_NAN = ("nan", "uninitialized")


@dataclass(frozen=True, kw_only=True)
class SecondRun:
    """Result of the second run.

    Attributes:
      failures: ordered by first occurrence.
      is_same: whether the outputs were bitwise equal to those of the first run.
    """

    failures: Sequence[SiteFailure]
    is_same: bool

    def misses(self, tripped: int) -> bool:
        """Whether the second run failed to reproduce what tripped the first.

        The two programs are compiled separately and may round differently.
        """
        if tripped & CERTAIN and not any(f.site.check not in _OF_NAN for f in self.failures):
            return True
        return not self.failures and not self.is_same


class Again:
    """A fully checked kernel, to be rerun on the operands of an earlier run.

    Args:
      params: parameters of the `pallas_call` without checks.
      checks: names, as listed in `defaults.CHECKS`.
      ours: context entered during lowering, so that the kernel is not taken for the user's.
    """

    def __init__(
        self,
        primitive: jax_core.Primitive,
        params: dict[str, Any],
        checks: Sequence[str],
        ours: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        self._primitive = primitive
        self._params = params
        self._checks = tuple(checks)
        self._ours = ours
        self._x64 = config.enable_x64.value
        self._compiled: tuple[RecordLayout, Any] | None = None
        self._filled: Any = None
        self._fills_narrow = _only_writes_narrow(params)

    def may_be_unwritten(self, output: np.ndarray) -> bool:
        """Whether an output holds what HLO interpret mode fills unwritten memory with.

        int16 and `bool` are filled with 0, which is no sign of a fault: only where they cannot have
        been read does the run with other values say which elements were never written.
        """
        dtype = output.dtype
        if dtype in NARROW:
            return self._fills_narrow and not output.all()
        return dtype.kind in "iu" and bool((output == conditions.fill_of(dtype)).any())

    def run(self, args: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> SecondRun:
        """Run the kernel on `args`, which gave `results` in the first run."""
        with _lock:
            if self._compiled is None:
                self._compiled = self._compile(args)
        layout, executable = self._compiled
        *second, rows = _execute(executable, args)
        return SecondRun(
            failures=layout.read(rows),
            is_same=all(
                np.asarray(a).tobytes() == b.tobytes() for a, b in zip(results, second, strict=True)
            ),
        )

    def filled_otherwise(
        self, args: Sequence[np.ndarray], results: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """Masks of the outputs that depend on what unwritten integers hold.

        Runs the kernel without checks, and with another fill value than in the first run.
        """
        with _lock:
            if self._filled is None:
                with patches.installed(patches.FILL), _filling(self._fills_narrow):
                    self._filled = self._load(self._plain, args)
        second = _execute(self._filled, args)
        return [_differs(a, b) for a, b in zip(results, second, strict=True)]

    def _plain(self, args: Sequence[Any]) -> list[Any]:
        return list(self._primitive.bind(*args, **self._params))

    def _compile(self, args: Sequence[np.ndarray]) -> tuple[RecordLayout, Any]:
        made = instrument.instrument(self._params, self._checks, fills=True)
        assert made is not None
        assert made.layout is not None
        return made.layout, self._load(functools.partial(made.bind, self._primitive), args)

    def _load(self, function: Callable[..., list[Any]], args: Sequence[np.ndarray]) -> Any:
        with jax.enable_x64(self._x64), interpret.suspended(), self._ours():
            avals = [jax.ShapeDtypeStruct(np.shape(x), np.asarray(x).dtype) for x in args]
            traced = jax.jit(lambda *xs: function(xs), keep_unused=True).trace(*avals)
            module = traced.lower(lowering_platforms=("cpu",)).compiler_ir()
        options = compiler.get_compile_options(
            num_replicas=1, num_partitions=1, device_assignment=np.zeros((1, 1), int)
        )
        devices = xla_client.DeviceList((_device(),))
        return _client().compile_and_load(module, devices, options)


class _Here(threading.local):
    fills: bool = False
    narrow: bool = False


_here = _Here()


@contextlib.contextmanager
def _filling(narrow: bool) -> Iterator[None]:
    """Fill unwritten integers with another value, in kernels that this thread lowers.

    Args:
      narrow: whether to fill int16 and `bool` as well.
    """
    _here.fills, _here.narrow = True, narrow
    try:
        yield
    finally:
        _here.fills = _here.narrow = False


NARROW = (np.dtype("int16"), np.dtype("bool"))
"""Types that HLO interpret mode fills with zeros. It takes int16 for semaphores, too."""


def _only_writes_narrow(params: Mapping[str, Any]) -> bool:
    """Whether all unwritten memory of NARROW types is outputs that the kernel does not read."""
    if "grid_mapping" not in params:
        return False
    jaxpr, mapping = params["jaxpr"], params["grid_mapping"]
    of_inputs = mapping.num_index_operands + mapping.num_inputs
    read = {
        effect.input if isinstance(effect.input, int) else jaxpr.invars.index(effect.input)
        for effect in jaxpr.effects
        if isinstance(effect, RefEffect) and not isinstance(effect, WriteEffect)
    }
    for i, variable in enumerate(jaxpr.invars[of_inputs:], of_inputs):
        dtype = getattr(variable.aval, "dtype", None)
        is_output = i < of_inputs + mapping.num_outputs
        if not (is_output and i not in read) and not _is_wide(dtype):
            return False
    return "run_scoped" not in rewrite.primitives(jaxpr)


def _is_wide(dtype: Any) -> bool:
    return dtype not in NARROW and bool(jnp.issubdtype(dtype, jnp.number))


def filling(uninitialized_value: Callable[..., Any]) -> Callable[..., Any]:
    """Replacement for jax's `uninitialized_value` of HLO interpret mode."""

    @functools.wraps(uninitialized_value)
    def fill(shape: tuple[int, ...], dtype: Any) -> Any:
        # A scalar pads an array to whole blocks, and jax takes int16 for semaphores.
        is_narrow = dtype in NARROW
        is_memory = shape and (is_narrow or jnp.issubdtype(dtype, jnp.integer))
        if not _here.fills or not is_memory or (is_narrow and not _here.narrow):
            return uninitialized_value(shape, dtype)
        if dtype == jnp.bool_:
            return jnp.full(shape, True, dtype)
        return jnp.full(shape, int(jnp.iinfo(dtype).max) // 3, dtype)

    return fill


MAX_ROUNDING = 2
"""Maximum difference of integers that different rounding of floats may cause."""


def _differs(first: np.ndarray, second: np.ndarray) -> Any:
    """Mask of the elements that differ by more than two programs round."""
    a, b = np.asarray(first), np.asarray(second)
    if a.dtype.kind == "b":
        return a != b
    is_integer = a.dtype.kind in "iu"
    a, b = a.astype("float64"), b.astype("float64")
    if is_integer:
        return abs(a - b) > MAX_ROUNDING
    return ~np.isclose(a, b, rtol=1e-2, atol=1e-2, equal_nan=True)


def can_be_run_again(params: dict[str, Any]) -> bool:
    """Whether a kernel is a function of its operands: in HLO interpret mode, without prints."""
    if not is_hlo(params.get("interpret")) or "grid_mapping" not in params:
        return False
    return all(isinstance(effect, _OWN_EFFECTS) for effect in params["jaxpr"].effects)


def is_on_one_cpu(context: Any) -> bool:
    """Whether the program being lowered runs on a single CPU, where its operands are at hand."""
    module = context.module_context
    devices = getattr(module.axis_context, "num_devices", None)  # None under `shard_map`
    return tuple(module.platforms) == ("cpu",) and devices == 1


_lock = threading.Lock()
"""Serialises compilation: callbacks of several programs may request it concurrently."""


@functools.cache
def _client() -> Any:
    return xla_client.make_cpu_client(asynchronous=False)


def _device() -> Any:
    return _client().local_devices()[0]


def _execute(executable: Any, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    sharding = SingleDeviceSharding(_device())
    given = [
        xla_client.batched_device_put(
            jax_core.ShapedArray(x.shape, x.dtype), sharding, [x], [_device()]
        )
        for x in map(np.asarray, args)
    ]
    results = executable.execute_sharded(given).disassemble_into_single_device_arrays()
    return [np.asarray(copies[0]) for copies in results]
