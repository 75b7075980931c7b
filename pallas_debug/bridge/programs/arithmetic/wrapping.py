"""Equations whose integers are bits, not numbers: hashes, packed words, digits of a word.

Signed integers wrap around in these on purpose.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import jax.numpy as jnp

from pallas_debug.bridge import primitives
from pallas_debug.bridge.jaxprs import nested
from pallas_debug.bridge.programs import program as ir


def _with(role: primitives.Role) -> frozenset[str]:
    return primitives.named(lambda row: role in row.roles)


_MIXES, _SELECTS, _PACKS = _with("mixes"), _with("selects"), _with("packs")
_CARRIES, _KEEPS = _with("carries"), _with("keeps")


def bit_patterns(eqns: Sequence[Any], bits: Collection[Any] = ()) -> set[int]:
    """Numbers of equations whose results or operands are bits, not numbers.

    The sums and products of a hash or a packed word are meant to wrap. The operation on bits may
    follow after more arithmetic. A shift to the left may also be undone by one to the right, or
    place the digits of a number. A cast of bits that were selected may drop the others.

    Args:
      bits: inputs that are bits, such as random ones.
    """
    mixed: set[Any] = set()
    packed: set[Any] = set()
    selected = {v for eqn in eqns if eqn.primitive.name in _SELECTS for v in eqn.outvars}
    found = set()
    for i in reversed(range(len(eqns))):
        eqn = eqns[i]
        name, variables = eqn.primitive.name, nested.variables(eqn.invars)
        to_unsigned = name == "convert_element_type" and jnp.issubdtype(
            eqn.params["new_dtype"], jnp.unsignedinteger
        )
        if not mixed.isdisjoint(eqn.outvars) or (
            name == "shift_left" and not packed.isdisjoint(eqn.outvars)
        ):
            found.add(i)
        if name == "convert_element_type" and not selected.isdisjoint(variables):
            found.add(i)
        if name in _MIXES or to_unsigned:
            mixed.update(variables)
        if name in _PACKS or to_unsigned:
            packed.update(variables)
        if name in _CARRIES:
            for kept in (mixed, packed):
                if not kept.isdisjoint(eqn.outvars):
                    kept.update(variables)
    given = derived_bits(eqns, bits)
    return (
        found
        | digit_shifts(eqns)
        | {i for i, eqn in enumerate(eqns) if not given.isdisjoint(nested.variables(eqn.invars))}
    )


def derived_bits(eqns: Sequence[Any], bits: Collection[Any] = ()) -> set[Any]:
    """Variables that are bits: computed from bits, by an exclusive or, or from placed digits."""
    found, digits = set(bits), digit_shifts(eqns)
    for i, eqn in enumerate(eqns):
        name = eqn.primitive.name
        is_mixed = name == "xor" and eqn.outvars[0].aval.dtype != bool
        if (
            is_mixed
            or i in digits
            or (name in _KEEPS and not found.isdisjoint(nested.variables(eqn.invars)))
        ):
            found.update(eqn.outvars)
    return found


def digit_shifts(eqns: Sequence[Any]) -> set[int]:
    """Numbers of shifts to the left by an amount that depends only on an element's position.

    They place the digits of numbers that are computed modulo a power of two. One amount for all
    elements may be a scale, as in an offset, which must not overflow.
    """
    fixed: set[Any] = set()
    positions: set[Any] = set()
    for eqn in eqns:
        variables = nested.variables(eqn.invars)
        if fixed.issuperset(variables):
            fixed.update(eqn.outvars)
            if eqn.primitive.name == "iota" or not positions.isdisjoint(variables):
                positions.update(eqn.outvars)
    return {
        i
        for i, eqn in enumerate(eqns)
        if eqn.primitive.name == "shift_left"
        and not positions.isdisjoint(nested.variables(eqn.invars[1:]))
    }


def find_bits(program: ir.KernelProgram) -> None:
    """Record in the units of a program which of their inputs are random bits."""
    bits: set[int] = set()
    for step in program.steps:
        if isinstance(step, ir.RandomBits):
            bits.add(step.output.number)
        elif isinstance(step, ir.Compute) and bits.intersection(r.number for r in step.inputs):
            unit = step.unit
            if unit is None:
                bits.update(reg.number for reg in step.outputs)
                continue
            pairs = zip(step.inputs, unit.invars, strict=True)
            unit.bits = {variable for reg, variable in pairs if reg.number in bits}
            derived = derived_bits(unit.eqns, unit.bits)
            pairs = zip(step.outputs, unit.outvars, strict=True)
            bits.update(reg.number for reg, variable in pairs if variable in derived)
