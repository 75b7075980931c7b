"""Second run of a kernel, with code that records what failed and where.

XLA takes longer to compile that code than the kernel itself, and it is rarely needed. In HLO
interpret mode a kernel is a function of its operands, so it first runs with a tripwire
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
from pallas_debug.bridge.jaxprs import nested

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
        """Return whether the second run failed to reproduce the failure of the first.

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
      ours: context entered during lowering, so that the kernel is not mistaken for the user's.
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
        self._filled: dict[frozenset[int] | None, Any] = {}
        self._memory = _memory(params)

    def may_be_unwritten(self, output: np.ndarray) -> bool:
        """Return whether an element of an output equals the fill value of HLO interpret mode."""
        dtype = output.dtype
        if dtype in NARROW:
            return not output.all()
        return dtype.kind in "iu" and bool((output == conditions.fill_of(dtype)).any())

    @property
    def reads_narrow(self) -> bool:
        """True if the kernel may read uninitialised memory of a type in `NARROW`.

        They are filled with zeros, which do not indicate a fault, so only a run with other values
        can tell.
        """
        return any(buffer.is_read and buffer.dtype in NARROW for buffer in self._memory)

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
        """Masks of the outputs that depend on the values of unwritten integers.

        Runs the kernel without checks, with another fill value than in the first run.
        """
        return self._otherwise(args, results, None)

    def unwritten_bools(
        self, args: Sequence[np.ndarray], results: Sequence[np.ndarray]
    ) -> tuple[str, ...]:
        """Names of the buffers of booleans that are read, and of whose initial values results
        depend.

        Other integers show where they are read: they hold a value that is rare.
        """
        candidates = [
            (number, buffer.name)
            for number, buffer in enumerate(self._memory)
            if buffer.is_read and buffer.dtype == np.dtype(bool)
        ]
        return tuple(
            name
            for number, name in candidates
            if any(mask.any() for mask in self._otherwise(args, results, frozenset({number})))
        )

    def _otherwise(
        self,
        args: Sequence[np.ndarray],
        results: Sequence[np.ndarray],
        only: frozenset[int] | None,
    ) -> list[np.ndarray]:
        with _lock:
            if only not in self._filled:
                fill = _Fill(self._memory, _other_value, only)
                with patches.installed(patches.FILL), _filling(fill):
                    self._filled[only] = self._load(self._plain, args)
        second = _execute(self._filled[only], args)
        return [_differs(a, b) for a, b in zip(results, second, strict=True)]

    def _plain(self, args: Sequence[Any]) -> list[Any]:
        return list(self._primitive.bind(*args, **self._params))

    def _compile(self, args: Sequence[np.ndarray]) -> tuple[RecordLayout, Any]:
        made = instrument.instrument(self._params, self._checks, fills=True)
        assert made is not None
        assert made.layout is not None
        # Zeros would not be noticed where they are read.
        with patches.installed(patches.FILL), _filling(_Fill(self._memory, _rare_value)):
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


NARROW = (np.dtype("int16"), np.dtype("bool"))
"""Types that HLO interpret mode fills with zeros. It uses int16 for semaphores, too."""


@dataclass(frozen=True, kw_only=True)
class _Buffer:
    """Memory that nothing has written when a kernel begins.

    Attributes:
      dtype: None for semaphores.
      is_read: whether the kernel may read it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any
    is_read: bool
    is_scoped: bool = False


def _memory(params: Mapping[str, Any]) -> tuple[_Buffer, ...]:
    """Outputs and scratch, in the order in which HLO interpret mode fills them, then scopes'."""
    if "grid_mapping" not in params:
        return ()
    jaxpr, mapping = params["jaxpr"], params["grid_mapping"]
    of_inputs = mapping.num_index_operands + mapping.num_inputs
    aliased = {of_inputs + output for _, output in params.get("input_output_aliases") or ()}
    read = {
        effect.input if isinstance(effect.input, int) else jaxpr.invars.index(effect.input)
        for effect in jaxpr.effects
        if isinstance(effect, RefEffect) and not isinstance(effect, WriteEffect)
    }
    names = nested.arg_names(jaxpr)
    arrays = {
        of_inputs + i: block.array_aval for i, block in enumerate(mapping.block_mappings_output)
    }
    found = [
        _buffer(names[i], arrays.get(i, variable.aval), is_read=i in read)
        for i, variable in enumerate(jaxpr.invars)
        if i >= of_inputs and i not in aliased
    ]
    return tuple(buffer for buffer in [*found, *_scoped(jaxpr)] if buffer.shape)


def _buffer(name: str, aval: Any, *, is_read: bool, is_scoped: bool = False) -> _Buffer:
    is_number = jnp.issubdtype(aval.dtype, jnp.number) or aval.dtype == jnp.bool_
    dtype = np.dtype(aval.dtype) if is_number else None
    return _Buffer(
        name=name, shape=tuple(aval.shape), dtype=dtype, is_read=is_read, is_scoped=is_scoped
    )


def _scoped(jaxpr: Any) -> Iterator[_Buffer]:
    for eqn in nested.equations(jaxpr):
        if eqn.primitive.name == "run_scoped":
            inner = eqn.params["jaxpr"]
            names = nested.arg_names(inner)
            for name, variable in zip(names, inner.invars, strict=True):
                yield _buffer(name, variable.aval, is_read=True, is_scoped=True)


@dataclass(eq=False)
class _Fill:
    """Values for unwritten memory of integers, in a kernel that this thread lowers.

    Attributes:
      value: returns the value for a type; None leaves it to jax.
      only: numbers of the buffers to fill; None fills all of them.
    """

    memory: Sequence[_Buffer]
    value: Callable[[Any], Any]
    only: frozenset[int] | None = None
    count: int = 0

    def of(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Value for the next memory that jax fills; None leaves it to jax."""
        is_narrow = dtype in NARROW
        # A scalar pads an array to whole blocks.
        if not shape or not (is_narrow or jnp.issubdtype(dtype, jnp.integer)):
            self.count += bool(shape)
            return None
        number, self.count = self.count, self.count + 1
        known = self._known(number, shape, dtype)
        if is_narrow and known is None:
            return None  # perhaps a semaphore
        if self.only is not None and known not in self.only:
            return None
        return self.value(dtype)

    def _known(self, number: int, shape: tuple[int, ...], dtype: Any) -> int | None:
        """Number of this buffer, if it can be identified."""
        top = [buffer for buffer in self.memory if not buffer.is_scoped]
        if number < len(top):
            is_it = top[number].shape == shape and top[number].dtype == dtype
            return number if is_it else None
        alike = [
            i
            for i, buffer in enumerate(self.memory)
            if buffer.is_scoped and buffer.shape == shape and buffer.dtype in (dtype, None)
        ]
        return alike[0] if len(alike) == 1 and self.memory[alike[0]].dtype == dtype else None


def _other_value(dtype: Any) -> Any:
    return True if dtype == jnp.bool_ else int(jnp.iinfo(dtype).max) // 3


def _rare_value(dtype: Any) -> Any:
    return None if dtype == jnp.bool_ else conditions.fill_of(dtype)


class _Here(threading.local):
    fill: _Fill | None = None


_here = _Here()


@contextlib.contextmanager
def _filling(fill: _Fill) -> Iterator[None]:
    """Fill unwritten integers with other values, in kernels that this thread lowers."""
    _here.fill = fill
    try:
        yield
    finally:
        _here.fill = None


def filling(uninitialized_value: Callable[..., Any]) -> Callable[..., Any]:
    """Replacement for jax's `uninitialized_value` of HLO interpret mode."""

    @functools.wraps(uninitialized_value)
    def fill(shape: tuple[int, ...], dtype: Any) -> Any:
        value = None if _here.fill is None else _here.fill.of(tuple(shape), dtype)
        return uninitialized_value(shape, dtype) if value is None else jnp.full(shape, value, dtype)

    return fill


MAX_ROUNDING = 2
"""Maximum difference of integers that different rounding of floats may cause."""


def _differs(first: np.ndarray, second: np.ndarray) -> Any:
    """Mask of the elements that differ by more than the rounding of two programs."""
    a, b = np.asarray(first), np.asarray(second)
    if a.dtype.kind == "b":
        return a != b
    is_integer = a.dtype.kind in "iu"
    a, b = a.astype("float64"), b.astype("float64")
    if is_integer:
        return abs(a - b) > MAX_ROUNDING
    return ~np.isclose(a, b, rtol=1e-2, atol=1e-2, equal_nan=True)


def can_be_run_again(params: dict[str, Any]) -> bool:
    """Return whether a kernel can be repeated: it is in HLO interpret mode, and has no prints."""
    if not is_hlo(params.get("interpret")) or "grid_mapping" not in params:
        return False
    return all(isinstance(effect, _OWN_EFFECTS) for effect in params["jaxpr"].effects)


def is_on_one_cpu(context: Any) -> bool:
    """Return whether the program is lowered for a single CPU, where its operands are at hand."""
    devices = getattr(context.module_context.axis_context, "num_devices", None)
    return is_on_cpus(context) and devices == 1  # None under `shard_map`


def is_on_cpus(context: Any) -> bool:
    """Return whether the program being lowered runs on CPUs, which only interpret kernels."""
    return tuple(context.module_context.platforms) == ("cpu",)


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
