"""Programs with kernels, lowered and compiled with settings of jax's and options of the compiler's.

For `pallas_debug.compile`. The arrays among the arguments are traced; anything else is part of the
program, as in `trace.lower_for_kernels`.
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
    """The arguments of one call, told apart.

    Attributes:
      tree: how they were nested.
      leaves: all of them, in order.
      traced: positions of those that are arrays.
    """

    tree: Any
    leaves: tuple[Any, ...] = field(repr=False)
    traced: tuple[int, ...]

    @property
    def arrays(self) -> list[Any]:
        """What the executable is called with."""
        return [self.leaves[i] for i in self.traced]

    def key(self) -> Hashable:
        """Equal for calls that the same executable can serve.

        Raises:
          UsageError: an argument that is no array cannot be compared.
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
        """Of the TPU, or stand-in for one, that an argument says it is on; None for no TPU."""
        shardings = (getattr(leaf, "sharding", None) for leaf in self.arrays)
        devices = (device for s in shardings if s is not None for device in s.device_set)
        return next((str(d.device_kind) for d in devices if d.platform == "tpu"), None)


def call_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> CallArguments:
    """The call with these arguments."""
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
    """The program as jax hands it to the compiler.

    Args:
      settings: names of jax's settings that are to be true meanwhile.
      chip_of: where there is no TPU, the target whose chip the code gets that asks for one.
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
