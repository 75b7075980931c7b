"""Named argument set of an operation, shared by its tests, benchmarks and demo."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

TAGS = ("small", "edge", "bench")


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Shapes, dtypes and keyword arguments of one call of an operation.

    `tags` are from `TAGS`: "small" runs in interpret mode in a second; so does "edge", which covers
    an edge case (ragged blocks, fully masked rows, ...); "bench" is of realistic size. `values` are
    arguments, by position, with fixed rather than random values. `not_on` names the targets whose
    compiler rejects the kernel.
    """

    name: str
    tags: tuple[str, ...]
    args: tuple[jax.ShapeDtypeStruct, ...]
    kwargs: Mapping[str, object] = field(default_factory=dict, hash=False)
    values: Mapping[int, object] = field(default_factory=dict, hash=False)
    not_on: tuple[str, ...] = ()

    def make_args(self, seed: int = 0) -> tuple[jax.Array, ...]:
        """Return concrete arrays for `args`, drawn from a numpy generator seeded with `seed`.

        Floating-point arrays are standard normal. Integer arrays are uniform over all values of
        int8, so that they fit every signed integer dtype.
        """
        rng = np.random.default_rng(seed)
        return tuple(
            jnp.asarray(self.values[i], arg.dtype) if i in self.values else _random_array(rng, arg)
            for i, arg in enumerate(self.args)
        )


def _random_array(rng: np.random.Generator, arg: jax.ShapeDtypeStruct) -> jax.Array:
    if jnp.issubdtype(arg.dtype, jnp.integer):
        values = rng.integers(-128, 128, arg.shape)
    else:
        values = rng.standard_normal(arg.shape)
    array: jax.Array = jnp.asarray(values.astype(arg.dtype))
    return array
