"""Evaluation of scalar registers: instructions of the scalar core that decide which bundles run.

A value is a 32-bit number, an address (its allocation and an offset), or unknown (None). Grid
indices, trip counts, sync flags and the conditions of `pl.when` follow from constants in the
bundles; values from vectors, or from memory that the kernel did not write, are unknown.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pallas_debug.ir.bundles import Instruction
from pallas_debug.ir.llo import NAME

Address = tuple[str, int]
Scalar = int | Address | None

_ALLOCATION = re.compile(r"\[#(?P<name>\w+)(?: \+ \$(?P<offset>0x[0-9a-f]{1,8}))?\]")
_BASE = re.compile(rf"\[#(?P<allocation>\w+)|\[?(?P<register>{NAME})")
_OFFSET = re.compile(
    rf"\+ (?:\$(?P<hex>0x[0-9a-f]{{1,8}})|(?P<value>{NAME})|(?P<number>\d{{1,9}}))"
)
_MASK = (1 << 32) - 1
_LIMIT = 1 << 31


def wrapped(value: int) -> int:
    """Wrap a number to a signed 32-bit integer."""
    if -_LIMIT <= value < _LIMIT:
        return value
    value &= _MASK
    return value - (1 << 32) if value >> 31 else value


def literal(text: str) -> Scalar:
    """Parse a number or an address; returns None for anything else."""
    if text.isdecimal() and len(text) <= 10:
        return wrapped(int(text))
    if text.startswith("-") and text[1:].isdecimal() and len(text) <= 11:
        return wrapped(int(text))
    if text.startswith("0x") and len(text) <= 10:
        try:
            return wrapped(int(text, 16))
        except ValueError:
            return None
    found = _ALLOCATION.match(text)
    if found:
        return found["name"], int(found["offset"] or "0", 16)
    return {"true": 1, "false": 0}.get(text)


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodedScalar:
    """A decoded instruction of the scalar core.

    Attributes:
      result: register that the instruction defines.
      function: computes the result from the values of `arguments`; None if it is unknown.
      arguments: register names or values.
      predicate: register, and the value it must have for the instruction to run.
      kept: register or value that the result has if the predicate is false.
    """

    result: str
    function: Callable[..., Scalar] | None
    arguments: tuple[str | Scalar, ...]
    predicate: tuple[str, bool] | None = None
    kept: str | Scalar = None


def predicate_of(instruction: Instruction) -> tuple[str, bool] | None:
    """Return the predicate register of an instruction, and the value it must have."""
    if instruction.predicate is None:
        return None
    return instruction.predicate.removeprefix("!"), not instruction.predicate.startswith("!")


def argument(text: str) -> str | Scalar:
    """Parse an argument: the name of a register, or a value."""
    # An address or an addend may be followed by the allocation that it points into.
    word = text if text.startswith("[") else text.split(" ", 1)[0]
    return word if word.startswith("%") else literal(word)


def decode(instruction: Instruction) -> DecodedScalar | None:
    """Decode an instruction with a scalar or predicate result; None for all others."""
    result = instruction.results[0]
    if not result.startswith(("%s", "%p")):
        return None
    stem = instruction.opcode.partition(".")[0]
    name = instruction.opcode.removesuffix(".totalorder")
    function = _FUNCTIONS.get(name) or _FUNCTIONS.get(stem)
    if instruction.opcode.startswith("inlined_call_operand"):
        if is_by_value(instruction):
            return DecodedScalar(result=result, function=_unknown, arguments=())
        return DecodedScalar(result=result, function=first, arguments=((result, 0),))
    if function is None:
        return DecodedScalar(result=result, function=None, arguments=())
    arguments = tuple(argument(text) for text in instruction.arguments)
    if stem == "int_to_ptr":  # `int_to_ptr.hbm [resolvable:$true] %s1`
        arguments = tuple(instruction.operands[:1])
    if not _takes(function, len(arguments)):  # a damaged listing
        return DecodedScalar(result=result, function=None, arguments=())
    kept = argument(instruction.kept) if instruction.kept else None
    return DecodedScalar(
        result=result,
        function=function,
        arguments=arguments,
        predicate=predicate_of(instruction),
        kept=kept,
    )


@functools.cache
def _takes(function: Callable[..., Scalar], count: int) -> bool:
    """Return whether a function accepts this number of arguments."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    return True


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPlace:
    """Address of a scalar load or store.

    Attributes:
      base: allocation, or register that holds an address.
      offset: constant part of the offset.
      index: register that is added to the offset.
    """

    base: Address | str | None
    offset: int = 0
    index: str | None = None

    def at(self, registers: Mapping[str | Scalar, Scalar]) -> Address | None:
        """Compute the address; None if it is not known."""
        base = registers.get(self.base) if isinstance(self.base, str) else self.base
        if not isinstance(base, tuple):
            return None
        if self.index is None:
            return base[0], base[1] + self.offset
        index = registers.get(self.index)
        return (base[0], base[1] + self.offset + index) if isinstance(index, int) else None


def place_of(instruction: Instruction) -> MemoryPlace | None:
    """Parse the address of an `sld` or `sst`: `[smem:[#allocation2 + %s3]]`, `[smem:%s1 + %s2]`."""
    start = instruction.text.find("[smem:")
    if start < 0:
        return None
    text = instruction.text[start + len("[smem:") :]
    found = _BASE.match(text)
    base: Address | str | None = found["register"] if found else None
    if found and found["allocation"]:
        base = (found["allocation"], 0)
    inside = text[: text.find("]")]
    offset, index = 0, None
    for found in _OFFSET.finditer(inside):
        if found["value"]:
            index = found["value"]
        else:
            offset += int(found["hex"], 16) if found["hex"] else int(found["number"])
    return MemoryPlace(base=base, offset=offset, index=index)


def is_by_value(operand: Instruction) -> bool:
    """Return whether an operand is a number: `inlined_call_operand.<no memory space>`."""
    return "<no memory space>" in operand.text


def _unknown() -> Scalar:
    return None


def first(value: Scalar, *rest: Scalar) -> Scalar:
    """Return the first argument: the result of a move."""
    return value


def _add(a: Scalar, b: Scalar) -> Scalar:
    if isinstance(a, int) and isinstance(b, int):
        return wrapped(a + b)
    if isinstance(a, tuple) and isinstance(b, int):
        return a[0], a[1] + b
    if isinstance(b, tuple) and isinstance(a, int):
        return b[0], b[1] + a
    return None


def _sub(a: Scalar, b: Scalar) -> Scalar:
    if isinstance(a, int) and isinstance(b, int):
        return wrapped(a - b)
    if isinstance(a, tuple) and isinstance(b, int):
        return a[0], a[1] - b
    if isinstance(a, tuple) and isinstance(b, tuple) and a[0] == b[0]:
        return a[1] - b[1]
    return None


def _numbers(function: Callable[[int, int], int]) -> Callable[..., Scalar]:
    def on_numbers(a: Scalar, b: Scalar = 0, *_: Scalar) -> Scalar:
        if isinstance(a, int) and isinstance(b, int):
            return wrapped(function(a, b))
        return None

    return on_numbers


def _unsigned(function: Callable[[int, int], int]) -> Callable[..., Scalar]:
    return _numbers(lambda a, b: function(a & _MASK, b & _MASK))


def _and(a: Scalar, b: Scalar) -> Scalar:
    """Compute `and` of numbers or predicates; 0 if either is 0, even if the other is unknown."""
    if a == 0 or b == 0:
        return 0
    return wrapped(a & b) if isinstance(a, int) and isinstance(b, int) else None


def _por(a: Scalar, b: Scalar) -> Scalar:
    if a == 1 or b == 1:
        return 1
    return a | b if isinstance(a, int) and isinstance(b, int) else None


def _not(a: Scalar) -> Scalar:
    return 1 - a if isinstance(a, int) else None


def _select(predicate: Scalar, a: Scalar, b: Scalar) -> Scalar:
    if isinstance(predicate, int):
        return a if predicate else b
    return a if a == b else None


def _compare(function: Callable[[int, int], bool]) -> Callable[..., Scalar]:
    def compared(a: Scalar, b: Scalar) -> Scalar:
        if isinstance(a, int) and isinstance(b, int):
            return int(function(a, b))
        if isinstance(a, tuple) and isinstance(b, tuple) and a[0] == b[0]:
            return int(function(a[1], b[1]))
        return None

    return compared


_unsigned_minimum = _unsigned(min)

_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}

_FUNCTIONS: dict[str, Callable[..., Scalar]] = {
    "smov": first,
    "pmov": first,
    "int_to_ptr": first,
    "sadd": _add,
    "ssub": _sub,
    "scalar_lea": _add,
    "smul": _numbers(lambda a, b: a * b),
    "sand": _and,
    "sor": _numbers(lambda a, b: a | b),
    "sxor": _numbers(lambda a, b: a ^ b),
    "sshll": _numbers(lambda a, b: a << b if 0 <= b < 32 else 0),
    "sshra": _numbers(lambda a, b: a >> min(max(b, 0), 31)),
    "sshrl": _unsigned(lambda a, b: a >> b if b < 32 else 0),
    "smin.u32": _unsigned_minimum,
    "smax.u32": _unsigned(max),
    "smin": _numbers(min),
    "smax": _numbers(max),
    "scalar_select": _select,
    "pand": _and,
    "por": _por,
    "pneg": _not,
    "pnand": lambda a, b: _not(_and(a, b)),
    "pnor": lambda a, b: _not(_por(a, b)),
    "pxor": _numbers(lambda a, b: a ^ b),
    **{f"scmp.{name}.s32": _compare(f) for name, f in _COMPARISONS.items()},
    **{
        f"scmp.{name}.u32": _compare(lambda a, b, f=f: f(a & _MASK, b & _MASK))  # type: ignore[misc]
        for name, f in _COMPARISONS.items()
    },
}
