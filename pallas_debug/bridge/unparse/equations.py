"""Unparser for equations: operators, functions of `lax`, and primitives bound by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax

from pallas_debug.bridge import jaxcompat, primitives
from pallas_debug.bridge.jaxcompat import debugging, jax_core
from pallas_debug.bridge.jaxprs import nested
from pallas_debug.bridge.unparse import refs, regions, values
from pallas_debug.bridge.unparse.page import Writer


def write(
    block: Writer, jaxpr: Any, consts: Sequence[str], args: Sequence[str]
) -> tuple[Writer, list[str]]:
    """Write the lines of a jaxpr, at the block's depth.

    Args:
      consts, args: names of its variables.

    Returns:
      A block that knows the names of its variables, and its outputs.
    """
    names = [*zip(jaxpr.constvars, consts, strict=True), *zip(jaxpr.invars, args, strict=True)]
    inner = block.beside(names, _live(jaxpr))
    choices = _choices(jaxpr)
    for eqn in jaxpr.eqns:
        made = eqn.outvars[0] if eqn.outvars else None
        if made in choices:
            inner.call_choice(made, inner.read(choices[made]))
        else:
            _equation(inner, eqn)
    return inner, [inner.read(atom) for atom in jaxpr.outvars]


def _live(jaxpr: Any) -> set[Any]:
    """Variables that an equation reads, or that are returned."""
    read = [atom for eqn in jaxpr.eqns for atom in eqn.invars] + list(jaxpr.outvars)
    return set(nested.variables(read))


def _choices(jaxpr: Any) -> dict[Any, Any]:
    """Numbers that only select a branch, and the value from which each is computed.

    They are bools converted to numbers, and numbers clamped to the number of branches; `lax.cond`
    and `lax.switch` recompute them.
    """
    made = {}
    branches = {}
    for eqn in jaxpr.eqns:
        if eqn.primitive is lax.convert_element_type_p and eqn.invars[0].aval.dtype == np.bool_:
            made[eqn.outvars[0]], branches[eqn.outvars[0]] = eqn.invars[0], 2
        elif eqn.primitive is lax.clamp_p and isinstance(eqn.invars[2], jax_core.Literal):
            made[eqn.outvars[0]] = eqn.invars[1]
            branches[eqn.outvars[0]] = int(np.max(eqn.invars[2].val)) + 1
    for eqn in jaxpr.eqns:
        is_choice = eqn.primitive.name == "cond"
        if is_choice and branches.get(_variable(eqn.invars[0])) != len(eqn.params["branches"]):
            made.pop(_variable(eqn.invars[0]), None)
        for atom in eqn.invars[is_choice:]:
            made.pop(_variable(atom), None)
    for atom in jaxpr.outvars:
        made.pop(_variable(atom), None)
    return {var: atom for var, atom in made.items() if not var.aval.shape}


def _variable(atom: Any) -> Any:
    """Return the variable; None for a literal, which is not hashable."""
    return None if isinstance(atom, jax_core.Literal) else atom


def _equation(block: Writer, eqn: Any) -> None:
    inline = nested.inlined(eqn)
    if inline is not None:
        jaxpr, consts = inline
        args = [block.read(atom) for atom in eqn.invars]
        _, outputs = write(block, jaxpr, [values.constant(c) for c in consts], args)
        for var, text in zip(eqn.outvars, outputs, strict=True):
            block.call(var, text)
        return
    name = eqn.primitive.name
    if _changes_nothing(eqn):
        block.call(eqn.outvars[0], block.read(eqn.invars[0]))
        return
    region = regions.WRITERS.get(name)
    if region is not None:
        region(block, eqn, write)
    elif name in _LINES and not _is_another(eqn):
        _LINES[name](block, eqn)
    elif eqn.primitive.multiple_results and len(eqn.outvars) == 1:
        block.assign_first(eqn.outvars, _expression(block, eqn))
    else:
        block.assign(eqn.outvars, _expression(block, eqn))


def _changes_nothing(eqn: Any) -> bool:
    """Return whether a conversion keeps the dtype of its operand, and only removed a weak type."""
    is_conversion = eqn.primitive is lax.convert_element_type_p
    return is_conversion and eqn.invars[0].aval.dtype == eqn.outvars[0].aval.dtype


def _is_another(eqn: Any) -> bool:
    """Return whether this is a primitive of `lax` named like a Pallas primitive in the table."""
    return eqn.primitive is getattr(lax, f"{eqn.primitive.name}_p", None)


def _expression(block: Writer, eqn: Any) -> str:
    name = eqn.primitive.name
    args = [block.read(atom) for atom in eqn.invars]
    is_lax = _is_another(eqn)
    if is_lax and name in _FUNCTIONS:
        return _FUNCTIONS[name](args, eqn.params)
    if name in _OF_PALLAS and not is_lax:
        return _OF_PALLAS[name](block, eqn)
    row = primitives.TABLE.get(name)
    if is_lax and row is not None and row.is_plain and not _given(eqn.params):
        return f"lax.{name}({', '.join(args)})"
    return _bound(block, eqn, args)


def _given(params: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value is not None}


def _bound(block: Writer, eqn: Any, args: list[str]) -> str:
    """Bind the primitive itself, with unchanged parameters."""
    if nested.within(eqn.params):
        raise values.CannotUnparse(f"{eqn.primitive.name}, which holds a function of its own")
    name = f"{eqn.primitive.name}_p"
    if getattr(lax, name, None) is eqn.primitive:
        primitive = f"lax.{name}"
    else:
        module, attribute = _home(eqn.primitive)
        primitive = f"{module}.{attribute}"
        block.page.imports.add(module)
    try:
        given = values.keywords(eqn.params.items())
    except values.CannotUnparse as error:
        raise values.CannotUnparse(f"{eqn.primitive.name}, which gets {error}") from error
    return f"{primitive}.bind({', '.join([*args, *filter(None, [given])])})"


def _home(primitive: Any) -> tuple[str, str]:
    """Module and name of a primitive of jax."""
    for name, module in sorted(sys.modules.items()):
        if name.startswith(jaxcompat.PREFIX):
            for attribute, value in list(vars(module).items()):
                if value is primitive:
                    return name, attribute
    raise values.CannotUnparse(f"the primitive {primitive.name}, which is not one of jax's")


_Params = dict[str, Any]


def _with(function: str, *names: str) -> Callable[[list[str], _Params], str]:
    """Return a writer for a function with these parameters after its operand."""

    def write(args: list[str], params: _Params) -> str:
        return f"{function}({', '.join([*args, *(values.parameter(params[n]) for n in names)])})"

    return write


_FUNCTIONS: dict[str, Callable[[list[str], _Params], str]] = {
    "broadcast_in_dim": _with("lax.broadcast_in_dim", "shape", "broadcast_dimensions"),
    "convert_element_type": _with("lax.convert_element_type", "new_dtype"),
    "bitcast_convert_type": _with("lax.bitcast_convert_type", "new_dtype"),
    "integer_pow": _with("lax.integer_pow", "y"),
    "reshape": _with("lax.reshape", "new_sizes"),
    "slice": _with("lax.slice", "start_indices", "limit_indices", "strides"),
    "squeeze": _with("lax.squeeze", "dimensions"),
    "transpose": _with("lax.transpose", "permutation"),
    "reduce_sum": _with("lax.reduce_sum", "axes"),
    "reduce_max": _with("lax.reduce_max", "axes"),
    "reduce_min": _with("lax.reduce_min", "axes"),
    "axis_index": _with("lax.axis_index", "axis_name"),
}


def _program_id(block: Writer, eqn: Any) -> str:
    axis = block.page.grid_axes[eqn.params["axis"]]
    return f"pl.{eqn.primitive.name}({axis})"


def _multiple_of(block: Writer, eqn: Any) -> str:
    of = tuple(eqn.params["values"])
    text = values.parameter(of[0] if len(of) == 1 else of)
    return f"pl.multiple_of({block.read(eqn.invars[0])}, {text})"


def _roll(block: Writer, eqn: Any) -> str:
    array, shift = eqn.invars
    given = values.keywords(_given(eqn.params).items())
    return f"pltpu.roll({block.read(array)}, {block.index(shift)}, {given})"


_OF_PALLAS: dict[str, Callable[[Writer, Any], str]] = {
    "program_id": _program_id,
    "num_programs": _program_id,
    "multiple_of": _multiple_of,
    "roll": _roll,
    "get_barrier_semaphore": lambda block, eqn: "pltpu.get_barrier_semaphore()",
    "prng_random_bits": lambda block, eqn: (
        f"pltpu.prng_random_bits({values.parameter(eqn.params['shape'])})"
    ),
}


def _prng_seed(block: Writer, eqn: Any) -> None:
    block.line(f"pltpu.prng_seed({', '.join(block.index(atom) for atom in eqn.invars)})")


def _debug_print(block: Writer, eqn: Any) -> None:
    params = eqn.params
    args, kwargs = debugging.merge_callback_args(
        params["in_tree"], eqn.invars, params["static_args"]
    )
    if kwargs:
        raise values.CannotUnparse("a print with arguments by name")
    texts = [values.parameter(params["fmt"]), *map(block.read, args)]
    block.line(f"pl.debug_print({', '.join(texts)})")


_LINES: dict[str, Callable[[Writer, Any], None]] = {
    "get": refs.get,
    "swap": refs.swap,
    "dma_start": refs.dma_start,
    "dma_wait": refs.dma_wait,
    "semaphore_signal": refs.semaphore_signal,
    "semaphore_wait": refs.semaphore_wait,
    "semaphore_read": refs.semaphore_read,
    "prng_seed": _prng_seed,
    "debug_print": _debug_print,
    "delay": lambda block, eqn: block.line(f"pl.delay({block.read(eqn.invars[0])})"),
}
