"""Lowering of programs with kernels for `pallas_debug.compile`, with custom jax settings.

Array arguments are traced; any others are constants of the program, as in
`trace.lower_for_kernels`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from pallas_debug.bridge import chip
from pallas_debug.bridge.lowering import lower
from pallas_debug.errors import UsageError
from pallas_debug.model import Target


@dataclass(frozen=True, kw_only=True)
class CallArguments:
    """Arguments of one call, split into traced and constant ones.

    Attributes:
      tree: nesting of the arguments.
      leaves: all leaves, in order.
      traced: positions of the arrays.
    """

    tree: Any
    leaves: tuple[Any, ...] = field(repr=False)
    traced: tuple[int, ...]

    @property
    def arrays(self) -> list[Any]:
        """Arguments of the executable."""
        return [self.leaves[i] for i in self.traced]

    def key(self) -> Hashable:
        """Return a key that is equal for calls which can share an executable.

        Raises:
          UsageError: a non-array argument is not hashable.
        """
        arrays = tuple(_key(leaf) for leaf in self.arrays)
        fixed = tuple(leaf for i, leaf in enumerate(self.leaves) if i not in self.traced)
        key = (self.tree, self.traced, arrays, fixed, tuple(map(type, fixed)), _settings())
        try:
            hash(key)
        except TypeError as error:
            raise UsageError(
                f"an argument can be neither traced nor compared: {error}. Pass arrays, numbers, "
                "strings or functions, or close over it."
            ) from error
        return key

    def device_kind(self) -> str | None:
        """Device kind of the TPU, or its stand-in, on which an argument is; None for no TPU."""
        shardings = (getattr(leaf, "sharding", None) for leaf in self.arrays)
        devices = (device for s in shardings if s is not None for device in s.device_set)
        return next((str(d.device_kind) for d in devices if d.platform == "tpu"), None)


def call_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> CallArguments:
    """Flatten the arguments of a call."""
    leaves, tree = jax.tree.flatten((tuple(args), dict(kwargs)))
    traced = tuple(i for i, x in enumerate(leaves) if hasattr(x, "shape") and hasattr(x, "dtype"))
    return CallArguments(tree=tree, leaves=tuple(leaves), traced=traced)


def lowered(
    function: Callable[..., Any],
    call: CallArguments,
    *,
    settings: Iterable[str],
    chip_of: Target | None = None,
) -> jax.stages.Lowered:
    """Lower the program, ready for the compiler.

    Args:
      settings: names of jax settings to enable while lowering.
      chip_of: without a TPU, the target whose chip is presented to code that queries it.
    """

    def program(*arrays: Any) -> Any:
        filled = list(call.leaves)
        for i, array in zip(call.traced, arrays, strict=True):
            filled[i] = array
        args, kwargs = jax.tree.unflatten(call.tree, filled)
        return function(*args, **kwargs)

    program.__name__ = getattr(function, "__name__", "program")
    with lower.with_settings(settings):
        if chip_of is None:
            return jax.jit(program).lower(*call.arrays)
        platforms = None if call.device_kind() else ("tpu",)
        with chip.answering(chip_of):
            return jax.jit(program).trace(*call.arrays).lower(lowering_platforms=platforms)


def _key(array: Any) -> Hashable:
    committed = getattr(array, "committed", True)
    sharding = getattr(array, "sharding", None) if committed else None
    weak = bool(getattr(array, "weak_type", False))
    return (tuple(array.shape), str(array.dtype), weak, sharding)


def _settings() -> Hashable:
    return (bool(jax.config.jax_enable_x64), str(jax.config.jax_default_matmul_precision))
