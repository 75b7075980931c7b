"""Differentiable kernels, each with a slip in the backward kernel that can be switched on.

The line whose store is wrong ends with `# slip`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

Kernel = Callable[..., None]

ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))
WEIGHT = pl.BlockSpec((1, 128), lambda i: (0, 0))
COLUMN = pl.BlockSpec((8, 1), lambda i: (i, 0))
SQUARE = pl.BlockSpec((128, 128), lambda i: (0, 0))

VALID = 100


class Case(NamedTuple):
    """A function with a custom derivative, its reference and its arguments."""

    function: Callable[..., Any]
    reference: Callable[..., Any]
    args: tuple[Any, ...]
    backward: Kernel

    def line(self) -> int:
        """The line of the slip."""
        lines, first = inspect.getsourcelines(self.backward)
        (offset,) = [i for i, text in enumerate(lines) if text.rstrip().endswith("# slip")]
        return first + offset


def call(kernel: Kernel, *args: Any, ins: Sequence[Any], outs: Sequence[Any], **more: Any) -> Any:
    """Call a kernel on blocks of eight rows; the outputs are as large as these arguments."""
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for _, x in outs]
    return pl.pallas_call(
        kernel,
        grid=(args[0].shape[0] // 8,),
        in_specs=ins,
        out_specs=[spec for spec, _ in outs],
        out_shape=shapes,
        **more,
    )(*args)


def normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def elementwise(
    of: Callable[[Any], Any],
    backward: Kernel,
    reference: Callable[[Any], Any],
    *,
    keeps: str = "x",
) -> Case:
    """A function of each element."""

    def forward(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = of(x_ref[...])

    @jax.custom_vjp
    def function(x: Any) -> Any:
        return call(forward, x, ins=[ROWS], outs=[(ROWS, x)])[0]

    def saved(x: Any) -> Any:
        out = function(x)
        return out, x if keeps == "x" else out

    def pulled(kept: Any, g: Any) -> Any:
        return tuple(call(backward, kept, g, ins=[ROWS, ROWS], outs=[(ROWS, g)]))

    function.defvjp(saved, pulled)
    return Case(function, reference, (normal(0, 16, 128),), backward)


def factor(slip: bool) -> Case:
    """The derivative of x * sigmoid(x) with a factor that is not there."""

    def backward(x_ref: Any, g_ref: Any, dx_ref: Any) -> None:
        x = x_ref[...]
        s = jax.nn.sigmoid(x)
        dx_ref[...] = g_ref[...] * s * (1 + x * (s if slip else 1 - s))  # slip

    return elementwise(jax.nn.silu, backward, jax.nn.silu)


def residual(slip: bool) -> Case:
    """The cosine of the output instead of that of the input."""

    def backward(kept_ref: Any, g_ref: Any, dx_ref: Any) -> None:
        dx_ref[...] = g_ref[...] * jnp.cos(kept_ref[...])  # slip

    return elementwise(jnp.sin, backward, jnp.sin, keeps="out" if slip else "x")


def weighted(backward: Kernel, **more: Any) -> Case:
    """Rows times a weight, whose gradient is a sum over all rows."""

    def forward(x_ref: Any, w_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * w_ref[...]

    @jax.custom_vjp
    def function(x: Any, w: Any) -> Any:
        return call(forward, x, w, ins=[ROWS, WEIGHT], outs=[(ROWS, x)])[0]

    def pulled(kept: Any, g: Any) -> Any:
        x, w = kept
        outs = [(ROWS, x), (WEIGHT, w)]
        return tuple(call(backward, x, w, g, ins=[ROWS, WEIGHT, ROWS], outs=outs, **more))

    function.defvjp(lambda x, w: (function(x, w), (x, w)), pulled)
    return Case(function, lambda x, w: x * w, (normal(0, 32, 128), normal(1, 1, 128)), backward)


def accumulation(slip: bool) -> Case:
    """The sum over the grid keeps only its last step."""

    def backward(x_ref: Any, w_ref: Any, g_ref: Any, dx_ref: Any, dw_ref: Any) -> None:
        g = g_ref[...]
        dx_ref[...] = g * w_ref[...]
        before = jnp.where(pl.program_id(0) == 0, 0.0, 0.0 if slip else dw_ref[...])
        dw_ref[...] = before + jnp.sum(g * x_ref[...], axis=0, keepdims=True)  # slip

    return weighted(backward)


def parallel(slip: bool) -> Case:
    """The sum is over a parallel axis of the grid, whose steps run in any order."""

    def backward(x_ref: Any, w_ref: Any, g_ref: Any, dx_ref: Any, dw_ref: Any) -> None:
        g = g_ref[...]
        dx_ref[...] = g * w_ref[...]

        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            dw_ref[...] = jnp.zeros_like(dw_ref)

        dw_ref[...] += jnp.sum(g * x_ref[...], axis=0, keepdims=True)  # slip

    semantics = ("parallel" if slip else "arbitrary",)
    return weighted(backward, compiler_params=pltpu.CompilerParams(dimension_semantics=semantics))


def uninitialized(slip: bool) -> Case:
    """The sum over the grid begins with whatever is in memory."""

    def backward(
        x_ref: Any, w_ref: Any, g_ref: Any, dx_ref: Any, dw_ref: Any, sum_ref: Any
    ) -> None:
        g = g_ref[...]
        dx_ref[...] = g * w_ref[...]

        @pl.when(pl.program_id(0) == (-1 if slip else 0))
        def _() -> None:
            sum_ref[...] = jnp.zeros_like(sum_ref)

        sum_ref[...] += jnp.sum(g * x_ref[...], axis=0, keepdims=True)  # slip
        dw_ref[...] = sum_ref[...]

    return weighted(backward, scratch_shapes=[pltpu.VMEM((1, 128), jnp.float32)])


def transposed(slip: bool) -> Case:
    """The operand of a product is not transposed."""

    def forward(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.dot(x_ref[...], y_ref[...], precision="highest")

    def backward(g_ref: Any, y_ref: Any, dx_ref: Any) -> None:
        y = y_ref[...]
        dx_ref[...] = jnp.dot(g_ref[...], y if slip else y.T, precision="highest")  # slip

    @jax.custom_vjp
    def function(x: Any, y: Any) -> Any:
        return call(forward, x, y, ins=[ROWS, SQUARE], outs=[(ROWS, x)])[0]

    def pulled(kept: Any, g: Any) -> Any:
        x, y = kept
        (dx,) = call(backward, g, y, ins=[ROWS, SQUARE], outs=[(ROWS, x)])
        return dx, jnp.dot(x.T, g, precision="highest")

    function.defvjp(lambda x, y: (function(x, y), (x, y)), pulled)
    args = normal(0, 16, 128), normal(1, 128, 128)
    return Case(function, lambda x, y: jnp.dot(x, y, precision="highest"), args, backward)


def _softmax(backward: Kernel, rows: Any = COLUMN) -> Case:
    """The softmax of the first columns of each row, from the logarithm of its sum.

    Args:
      rows: which rows' sums the backward kernel is given.
    """

    def forward(x_ref: Any, o_ref: Any, sums_ref: Any) -> None:
        x = _masked(x_ref[...])
        largest = jnp.max(x, axis=1, keepdims=True)
        sums = largest + jnp.log(jnp.sum(jnp.exp(x - largest), axis=1, keepdims=True))
        o_ref[...] = jnp.exp(x - sums)
        sums_ref[...] = sums

    def both(x: Any) -> Any:
        sums = jax.ShapeDtypeStruct((x.shape[0], 1), x.dtype)
        return call(forward, x, ins=[ROWS], outs=[(ROWS, x), (COLUMN, sums)])

    @jax.custom_vjp
    def function(x: Any) -> Any:
        return both(x)[0]

    def saved(x: Any) -> Any:
        out, sums = both(x)
        return out, (x, sums)

    def pulled(kept: Any, g: Any) -> Any:
        x, sums = kept
        return tuple(call(backward, x, sums, g, ins=[ROWS, rows, ROWS], outs=[(ROWS, x)]))

    function.defvjp(saved, pulled)
    return Case(
        function, lambda x: jax.nn.softmax(_masked(x), axis=1), (normal(0, 16, 128),), backward
    )


def _masked(x: Any, limit: int = VALID) -> Any:
    return jnp.where(lax.broadcasted_iota(jnp.int32, x.shape, 1) < limit, x, -1e30)


def mask(slip: bool) -> Case:
    """The mask is left out."""

    def backward(x_ref: Any, sums_ref: Any, g_ref: Any, dx_ref: Any) -> None:
        g = g_ref[...]
        p = jnp.exp(_masked(x_ref[...], 128 if slip else VALID) - sums_ref[...])
        dx_ref[...] = p * (g - jnp.sum(g * p, axis=1, keepdims=True))  # slip

    return _softmax(backward)


def wrong_row(slip: bool) -> Case:
    """The residual of other rows."""

    def backward(x_ref: Any, sums_ref: Any, g_ref: Any, dx_ref: Any) -> None:
        g = g_ref[...]
        p = jnp.exp(_masked(x_ref[...]) - sums_ref[...])
        dx_ref[...] = p * (g - jnp.sum(g * p, axis=1, keepdims=True))  # slip

    return _softmax(backward, pl.BlockSpec((8, 1), lambda i: (i ^ 1, 0)) if slip else COLUMN)


CASES: dict[str, Callable[[bool], Case]] = {
    make.__name__: make
    for make in (
        factor,
        residual,
        accumulation,
        uninitialized,
        transposed,
        mask,
        wrong_row,
    )
}
