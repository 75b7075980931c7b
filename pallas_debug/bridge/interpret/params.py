"""Text form of interpret modes, such as `tpu,detect_races,dma_execution_mode=eager`.

A mode's parameters and their types are read from the dataclass of the installed jax.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from jax.experimental.pallas import tpu as pltpu

from pallas_debug.bridge import jaxcompat, versions
from pallas_debug.errors import UsageError, meant

Kind = Literal["auto", "hlo", "tpu", "gpu", "machine", "off"]

KINDS: tuple[Kind, ...] = typing.get_args(Kind)

_OF_JAX = ("tpu", "gpu")
"""Kinds whose parameters are those of a dataclass of jax."""

_BOOLS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


@dataclass(frozen=True)
class Mode:
    """Mode in which kernels run, with the requested parameters.

    Attributes:
      kind: `machine`, or `auto`, for the kernel machine; `hlo`, `tpu` or `gpu` for one of jax's
        interpreters; `off` leaves it to the code.
      params: parameters of `pltpu.InterpretParams` or its Mosaic GPU counterpart, as installed; of
        the machine, `sanitize`. Values may be given as text.

    Raises:
      UsageError: an unknown kind or parameter, a value of the wrong type, parameters for a kind
        without parameters, or a kind that the installed jax does not have.
    """

    kind: Kind
    params: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(_unknown_kind(self.kind))
        known = fields(self.kind) if self.kind == "gpu" or self.params else {}
        checked = {}
        for name, value in self.params.items():
            if name not in known:
                raise UsageError(_unknown_param(self.kind, name, known))
            checked[name] = _converted(name, value, known[name])
        object.__setattr__(self, "params", types.MappingProxyType(checked))
        if checked:
            self.value()  # jax has constraints of its own, such as at least one core

    def __hash__(self) -> int:
        return hash((self.kind, tuple(sorted(self.params))))

    def __str__(self) -> str:
        """Return the text form that `Mode.parse` reads."""
        return ",".join([self.kind, *(f"{k}={_shown(v)}" for k, v in self.params.items())])

    @property
    def sanitizes(self) -> bool:
        """True if the sanitizer judges kernels."""
        return bool(self.params.get("sanitize"))

    @classmethod
    def parse(cls, text: str | Mode) -> Mode:
        """Parse a mode: `hlo`, or `tpu,detect_races,num_cores_or_threads=2`.

        A bare name means True; other values are parsed according to the parameter's type.

        Raises:
          UsageError: see the class.
        """
        if isinstance(text, Mode):
            return text
        kind, *rest = (part.strip() for part in text.split(","))
        if kind not in KINDS:
            raise UsageError(_unknown_kind(kind))
        params: dict[str, object] = {}
        for part in rest:
            name, equals, value = (piece.strip() for piece in part.partition("="))
            if not name:
                raise UsageError(
                    f"an empty parameter of the interpret mode {kind!r}: write it as {kind} or "
                    f"{kind},NAME=VALUE"
                )
            if name in KINDS and not equals:
                raise UsageError(
                    f"{kind!r} and {name!r} are two interpret modes, but a kernel runs in one"
                )
            if name in params:
                raise UsageError(f"{name} is given twice")
            params[name] = value if equals else True
        return cls(kind, params)

    def value(self) -> Any:
        """Value of `interpret=` for jax; None for a mode that is not one of jax's interpreters."""
        if self.kind == "hlo":
            return ChosenMode.HLO
        if self.kind not in _OF_JAX:
            return None
        try:
            return _class(self.kind)(**self.params)
        except ValueError as error:
            raise UsageError(f"{self}: {error}") from error


class ChosenMode(enum.Enum):
    """Values of `interpret` that are not in the code of a kernel.

    jax takes any true value that is not an instance of `InterpretParams` as HLO interpret mode.
    """

    HLO = "HLO interpret mode"
    MACHINE = "the machine, instead of interpret=True in the code"

    def __bool__(self) -> bool:
        return self is ChosenMode.HLO


@functools.cache
def fields(kind: Kind) -> Mapping[str, Any]:
    """Return the parameters of a kind in the installed jax, with their types.

    Raises:
      UsageError: the installed jax has no such interpreter.
    """
    if kind == "machine":
        return {"sanitize": bool}
    if kind not in _OF_JAX:
        return {}
    found = _class(kind)
    hints = typing.get_type_hints(found)
    return {f.name: hints[f.name] for f in dataclasses.fields(found) if f.init}


def has_gpu_mode() -> bool:
    """Return whether the installed jax has an interpreter for GPUs."""
    try:
        fields("gpu")
    except UsageError:
        return False
    return True


def _class(kind: Kind) -> Any:
    if kind == "tpu":
        return pltpu.InterpretParams
    try:
        return jaxcompat.gpu_interpret_params()
    except ImportError as error:
        jax = versions.installed().get("jax", "none")
        hint = "; pip install absl-py" if error.name == "absl" else ""
        raise UsageError(
            f"GPU interpret mode is not available: Mosaic GPU of jax {jax} cannot be imported "
            f"({error}{hint})"
        ) from error


def _converted(name: str, value: object, kind: Any) -> object:
    """Return a value, or what its text says, as an instance of a parameter's type."""
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    options: Sequence[Any] = typing.get_args(kind) if is_union else (kind,)
    for option in options:
        try:
            return _read(value, option)
        except (KeyError, TypeError, ValueError):
            continue
    expected = " or ".join(map(_expected, options))
    raise UsageError(f"{name} must be {expected}, not {value!r}")


def _read(value: Any, option: Any) -> object:
    """Return a value as an instance of a type; raise an exception if it is none."""
    is_text = isinstance(value, str)
    if option is types.NoneType:
        return {"none": None, None: None}[value.lower() if is_text else value]
    if typing.get_origin(option) is Literal:
        return {(type(a), a): a for a in typing.get_args(option)}[type(value), value]
    if option is bool and is_text:
        return _BOOLS[value.lower()]
    if option is int and is_text:
        return int(value, 0)
    if _is_flag(option) and is_text:
        members = [option[part.strip().upper()] for part in value.split("|")]
        return functools.reduce(lambda a, b: a | b, members)
    is_plain = option in (bool, int) or _is_flag(option)
    if type(value) is option if is_plain else callable(value):
        return value
    raise ValueError


def _is_flag(option: Any) -> bool:
    return isinstance(option, type) and issubclass(option, enum.Flag)


def _expected(option: Any) -> str:
    if typing.get_origin(option) is Literal:
        return " or ".join(str(a) for a in typing.get_args(option))
    if _is_flag(option):
        return "|".join(member.name.lower() for member in option)
    known = {bool: "true or false", int: "a whole number", types.NoneType: "none"}
    return known.get(option, "a function, which can be passed only from Python")


def _shown(value: object) -> str:
    if isinstance(value, enum.Flag):
        return "|".join(str(member.name).lower() for member in value)
    if callable(value):
        return str(getattr(value, "__name__", value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _unknown_kind(text: str) -> str:
    name = text.partition("=")[0].strip()
    known = f"{text!r} is not an interpret mode{meant(name, KINDS)}; there are: {', '.join(KINDS)}"
    return known + _owner(name)


def _unknown_param(kind: Kind, name: str, known: Mapping[str, Any]) -> str:
    if not known:
        return f"the interpret mode {kind!r} takes no parameters, such as {name}{_owner(name)}"
    has = "it has" if kind == "machine" else f"jax {versions.installed().get('jax')} has"
    return (
        f"the interpret mode {kind!r} has no parameter {name!r}{meant(name, known)}; {has}: "
        f"{', '.join(known)}"
    )


def _owner(name: str) -> str:
    """Hint at the mode that has a parameter; empty if none has."""
    kinds: tuple[Kind, ...] = ("tpu", "machine")
    owner = next((kind for kind in kinds if name in fields(kind)), None)
    return f"; {name} is a parameter of {owner!r}: write {owner},{name}" if owner else ""
