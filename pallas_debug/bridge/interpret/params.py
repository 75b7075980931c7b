"""Text form of interpret modes, such as `tpu,detect_races,dma_execution_mode=eager`.

A mode's parameters and their types are read from the dataclass of the installed jax.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import operator
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import msgspec
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.bridge import jaxcompat, versions
from pallas_debug.errors import UsageError, meant

Kind = Literal["auto", "hlo", "tpu", "gpu", "machine", "off"]

KINDS: tuple[Kind, ...] = typing.get_args(Kind)

_OF_JAX = ("tpu", "gpu")
"""Kinds whose parameters are those of a dataclass of jax."""


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
            hint, known_kinds = meant(self.kind, KINDS), ", ".join(KINDS)
            raise UsageError(
                f"{self.kind!r} is not an interpret mode{hint}; there are: {known_kinds}"
            )
        known = fields(self.kind) if self.kind == "gpu" or self.params else {}
        checked = {}
        for name, value in self.params.items():
            if name not in known:
                raise UsageError(
                    f"the interpret mode {self.kind!r} has no parameter {name!r}"
                    f"{meant(name, known)}; it has {', '.join(known) or 'none'}"
                )
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
        params: dict[str, object] = {}
        for part in rest:
            name, equals, value = (piece.strip() for piece in part.partition("="))
            if name in params:
                raise UsageError(f"{name} is given twice")
            params[name] = value if equals else True
        return cls(cast(Kind, kind), params)

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
    options = typing.get_args(kind) or (kind,)
    flag = next((o for o in options if isinstance(o, type) and issubclass(o, enum.Flag)), None)
    is_function = callable(value) and not {bool, int, str} & set(options)
    if is_function or (flag and isinstance(value, flag)):
        return value
    try:
        if not isinstance(value, str):
            return msgspec.convert(value, kind)
        if value.lower() == "none" and types.NoneType in options:
            return None
        if flag:
            return functools.reduce(operator.or_, (flag[n.upper()] for n in value.split("|")))
        return msgspec.convert(value, kind, strict=False)
    except (KeyError, msgspec.ValidationError) as error:
        expected = kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
        raise UsageError(f"{name} must be {expected}, not {value!r}") from error


def _shown(value: object) -> str:
    if isinstance(value, enum.Flag):
        return "|".join(str(member.name).lower() for member in value)
    return getattr(value, "__name__", None) or str(value).lower()
