"""Products of float32 matrices as a TPU computes them by default: of operands in bfloat16.

The MXU multiplies bfloat16. A float32 product at default precision is one pass over rounded
operands, as the compiled schedule shows (`Precision.HIGHEST` takes six passes), and jax documents
it (https://docs.jax.dev/en/latest/201/precision.html). On a CPU the same product is exact to
float32. Here a function is run with its products rounded as on a TPU.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax

from pallas_debug.bridge import jaxcompat
from pallas_debug.bridge.jaxcompat import jax_core
from pallas_debug.bridge.jaxprs import arrays, lines, nested
from pallas_debug.bridge.jaxprs.outputs import KERNELS
from pallas_debug.bridge.jaxprs.params import equations_of, gpu_backend, name_of
from pallas_debug.model import SourceLine


@dataclass(frozen=True, kw_only=True)
class ProductSite:
    """A line with a product of float32 matrices at default precision.

    Attributes:
      kernel: its name; empty outside kernels.
    """

    kernel: str
    line: SourceLine | None


def sites_in(params: Any) -> tuple[ProductSite, ...]:
    """Lines of a kernel with products that a TPU rounds; none of a kernel for a GPU."""
    if gpu_backend(params):
        return ()
    name = name_of(params)
    found = (
        ProductSite(kernel=name, line=lines.source_of(eqn))
        for eqn in equations_of(params)
        if is_rounded_on_tpu(eqn)
    )
    return tuple(dict.fromkeys(found))


def rounded(
    function: Callable[..., Any],
    *,
    everywhere: bool = False,
    exact: Collection[ProductSite] = (),
) -> Callable[..., Any]:
    """Return a function that does the same with its products rounded as on a TPU.

    It traces `function` for its arguments. Calling it raises whatever tracing raises, as for a
    function that computes with numpy.

    Args:
      everywhere: whether to round products outside kernels, too.
      exact: lines whose products stay as they are.
    """
    rewriter = _Rewriter(everywhere, exact)

    def run(*args: Any, **kwargs: Any) -> Any:
        call, given = arrays.of_arrays(function, args, kwargs)
        traced, shapes = jax.make_jaxpr(call, return_shape=True)(*given)
        made = jaxcompat.closed_as(traced, rewriter.run(jaxcompat.opened(traced)[0]))
        outputs = jax.jit(jax_core.jaxpr_as_fun(made))(*given)
        return jax.tree.unflatten(jax.tree.structure(shapes), outputs)

    return run


def of_rounded_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that does the same with its float32 arguments rounded to bfloat16."""

    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = jax.tree.map(round_leaf, (args, kwargs))
        return function(*args, **kwargs)

    def round_leaf(leaf: Any) -> Any:
        is_float = getattr(leaf, "dtype", None) == np.float32
        return lax.reduce_precision(leaf, _EXPONENT_BITS, _MANTISSA_BITS) if is_float else leaf

    return run


def is_rounded_on_tpu(eqn: Any) -> bool:
    """Return whether an equation multiplies float32 matrices at default precision."""
    if eqn.primitive is not lax.dot_general_p:
        return False
    if any(atom.aval.dtype != np.float32 for atom in eqn.invars):
        return False
    precision = eqn.params["precision"]
    if not isinstance(precision, tuple):
        return precision in (None, lax.Precision.DEFAULT)  # else a named algorithm
    return all(one in (None, lax.Precision.DEFAULT) for one in precision)


class _Rewriter:
    """Rounds the operands of products in a jaxpr and in all within it; nothing else changes."""

    def __init__(self, everywhere: bool, exact: Collection[ProductSite]) -> None:
        self._everywhere = everywhere
        self._exact = frozenset(exact)

    def run(self, jaxpr: Any, kernel: str | None = None) -> Any:
        equations = [new for eqn in jaxpr.eqns for new in self._equations(eqn, kernel)]
        return jaxpr.replace(eqns=equations)

    def _equations(self, eqn: Any, kernel: str | None) -> list[Any]:
        if eqn.primitive.name in KERNELS:
            if gpu_backend(eqn.params):
                return [eqn]
            kernel = name_of(eqn.params)
        if nested.within(eqn.params):
            rounded = nested.edited(eqn.params, lambda inner: self.run(inner, kernel))
            return [eqn.replace(params=rounded)]
        if not is_rounded_on_tpu(eqn) or (kernel is None and not self._everywhere):
            return [eqn]
        if ProductSite(kernel=kernel or "", line=lines.source_of(eqn)) in self._exact:
            return [eqn]
        operands = [jax_core.Var(atom.aval) for atom in eqn.invars]
        rounding = [
            jax_core.new_jaxpr_eqn(
                [atom],
                [operand],
                lax.reduce_precision_p,
                {"exponent_bits": _EXPONENT_BITS, "mantissa_bits": _MANTISSA_BITS},
                set(),
                eqn.source_info,
                eqn.ctx,
            )
            for atom, operand in zip(eqn.invars, operands, strict=True)
        ]
        return [*rounding, eqn.replace(invars=operands)]


_EXPONENT_BITS, _MANTISSA_BITS = 8, 7
"""Those of bfloat16."""
