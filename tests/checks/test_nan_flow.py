"""NaN propagation: XLA's behaviour per operation, and the arrays that are inspected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from pallas_debug.bridge.instrument.flow import KEEPS_NAN, NanFlow, is_clean_constant
from pallas_debug.bridge.jaxprs import rewrite


@pytest.fixture(autouse=True)
def optimized() -> Iterator[None]:
    """As users compile: it is XLA's optimizations that might lose a NaN."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


ONE: dict[str, Callable[[Any], Any]] = {
    "neg": lambda x: -x,
    "square": lax.square,
    "integer_pow": lambda x: lax.integer_pow(x, 3),
    "exp": lax.exp,
    "exp2": lax.exp2,
    "log": lax.log,
    "sqrt": lax.sqrt,
    "rsqrt": lax.rsqrt,
    "abs": lax.abs,
    "reduce_sum": lambda x: lax.reduce_sum(x, (0,)),
    "broadcast_in_dim": lambda x: lax.broadcast_in_dim(x, (2, *x.shape), (1, 2)),
    "reshape": lambda x: lax.reshape(x, (x.size,)),
    "transpose": lambda x: lax.transpose(x, (1, 0)),
    "squeeze": lambda x: lax.squeeze(lax.slice(x, (0, 0), (1, x.shape[1])), (0,)),
    "expand_dims": lambda x: lax.expand_dims(x, (0,)),
    "copy": jnp.copy,
}
"""Operations of one array, of which the first row holds the NaN."""

TWO: dict[str, Callable[[Any, Any], Any]] = {
    "add": lax.add,
    "sub": lax.sub,
    "mul": lax.mul,
    "div": lax.div,
    "add_any": lax.add,  # the same to XLA; only a gradient has it
    "dot_general": lambda x, y: x @ y.T,
    "concatenate": lambda x, y: lax.concatenate([x, y], 0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(KEEPS_NAN))
def test_xla_keeps_a_nan(name: str) -> None:
    """In each half of a vector and in what is left behind the last one, of either operand."""
    clean = 1 + np.arange(5 * 37, dtype=np.float32).reshape(5, 37) % 7

    @jax.jit
    def results(x: Any, y: Any) -> list[Any]:
        found = []
        for dtype in ("float32", "bfloat16", "float16"):
            a, b = x.astype(dtype), y.astype(dtype)
            if name in ONE:
                found.append(ONE[name](a))
            elif name in TWO:
                found += [TWO[name](a, b), TWO[name](b, a), TWO[name](a, a), TWO[name](a * 0, b)]
            else:
                assert name == "convert_element_type"
                found += [a.astype(t) for t in ("float32", "bfloat16", "float16")]
        return [jnp.isnan(value).any() for value in found]

    for column in (0, 5, 36):
        dirty = clean.copy()
        dirty[0, column] = np.nan
        assert all(results(dirty, clean)), column
    assert not any(results(clean, clean))


def ends(function: Callable[..., Any], *args: Any) -> list[str]:
    """The operations whose results have to be looked at, of those that `function` is made of."""
    jaxpr = jax.make_jaxpr(function)(*args).jaxpr
    named: dict[int, tuple[str, Any]] = {}
    flow = NanFlow()

    class Follow(rewrite.Visitor):
        def after(self, eqn: Any, inputs: Any, outputs: Any, place: rewrite.ProgramPoint) -> None:
            named[id(outputs[0])] = (eqn.primitive.name, outputs[0])
            flow.follow(eqn, inputs, outputs)

    def replayed(*given: Any) -> Any:
        outputs = rewrite.replay(jaxpr, given, Follow())
        found.extend(named[id(x)][0] for x in flow.ends(x for _, x in named.values()))
        return outputs

    found: list[str] = []
    jax.make_jaxpr(replayed)(*args)
    return found


X = np.ones((4, 8), np.float32)


@pytest.mark.parametrize(
    "function, looked_at",
    [
        pytest.param(lambda x: lax.exp(x + x) * 2, ["mul"], id="only the end of a chain"),
        pytest.param(lambda x: (lax.exp(x), lax.log(x)), ["exp", "log"], id="both of a fork"),
        pytest.param(lambda x: lax.max(x * x, x), ["mul", "max"], id="in front of a maximum"),
        pytest.param(lambda x: (x * x)[0], ["mul", "squeeze"], id="of a part"),
        pytest.param(lambda x: lax.select(x > 0, x * x, x), ["gt", "mul", "select_n"], id="choice"),
        pytest.param(
            lambda x: lax.convert_element_type(x * x, "int32"),
            ["mul", "convert_element_type"],
            id="integers have none",
        ),
        pytest.param(
            lambda x: lax.convert_element_type(x * x, "float8_e4m3b11fnuz"),
            ["mul", "convert_element_type"],
            id="nor some narrow floats",
        ),
        pytest.param(
            lambda x: lax.integer_pow_p.bind(x * x, y=0), ["mul", "integer_pow"], id="power of 0"
        ),
        pytest.param(
            lambda x: lax.concatenate([x * x, x[:0]], 0) @ jnp.zeros((8, 0)),
            ["mul", "slice", "concatenate", "broadcast_in_dim", "dot_general"],
            id="no elements",
        ),
    ],
)
def test_what_is_looked_at(function: Callable[..., Any], looked_at: list[str]) -> None:
    assert ends(function, X) == looked_at


def test_a_filled_array_is_clean_and_one_of_nan_is_not() -> None:
    def fills(x: Any) -> tuple[Any, ...]:
        return jnp.full((4,), 2.0), jnp.full((4,), jnp.nan), jnp.broadcast_to(x, (4,)), x + 1

    clean = [is_clean_constant(e) for e in jax.make_jaxpr(fills)(np.float32(1)).jaxpr.eqns]
    assert clean == [True, False, False, False]
