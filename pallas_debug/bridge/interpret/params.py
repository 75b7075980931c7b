"""Text form of interpret modes, such as `tpu,detect_races,dma_execution_mode=eager`.

A mode's parameters and their types are read from the dataclass of the installed jax. Names from
other jax versions are translated; anything else that is unknown, of a wrong type or contradictory
is rejected with an explanation.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import functools
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from jax.experimental.pallas import tpu as pltpu

from pallas_debug.bridge import jaxcompat, versions
from pallas_debug.errors import UsageError, meant

Kind = Literal["auto", "hlo", "tpu", "gpu", "machine", "off"]

KINDS: tuple[Kind, ...] = typing.get_args(Kind)

_OF_JAX = ("tpu", "gpu")
"""Kinds whose parameters are those of a dataclass of jax."""

_ALWAYS_WAS: Mapping[str, object] = {"on_race": "warn"}
"""Fixed behaviour of jax versions without the parameter; only this value may be requested."""

_BOOLS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


@dataclass(frozen=True)
class Mode:
    """Mode in which kernels run, with the requested parameters.

    Attributes:
      kind: `machine` for the kernel machine; `auto` likewise, with jax's GPU interpret mode for
        kernels of Mosaic GPU; `hlo`, `tpu` or `gpu` for one of jax's interpreters; `off` leaves it
        to the code.
      params: parameters of `pltpu.InterpretParams` or its Mosaic GPU counterpart, as installed; of
        the machine, `sanitize`.

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
        checked = _checked(self.kind, self.params, known)
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
        return cls(kind, _read(kind, rest))

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


def _class(kind: Kind) -> Any:
    return pltpu.InterpretParams if kind == "tpu" else _gpu_class()


def _gpu_class() -> Any:
    try:
        return jaxcompat.gpu_interpret_params()
    except ImportError as error:
        jax = versions.installed().get("jax", "none")
        hint = "; pip install absl-py" if error.name == "absl" else ""
        raise UsageError(
            f"GPU interpret mode is not available: Mosaic GPU of jax {jax} cannot be imported "
            f"({error}{hint})"
        ) from error


def _read(kind: Kind, parts: Sequence[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for part in parts:
        name, equals, text = (piece.strip() for piece in part.partition("="))
        if not name:
            raise UsageError(
                f"an empty parameter of the interpret mode {kind!r}: write it as {kind} or "
                f"{kind},NAME=VALUE"
            )
        if name in KINDS and not equals:
            raise UsageError(
                f"{kind!r} and {name!r} are two interpret modes, but a kernel runs in one; `auto` "
                "chooses one for each kernel"
            )
        known = fields(kind)
        installed = _installed_name(name, known)
        if installed in found or name in found:
            raise UsageError(f"{name} is given twice")
        if not known or installed not in known:
            found[name] = text if equals else True  # rejected or dropped during validation
        else:
            found[installed] = _from_text(name, text if equals else None, known[installed])
    return found


def _checked(
    kind: Kind, params: Mapping[str, object], known: Mapping[str, Any]
) -> dict[str, object]:
    if params and not known:
        raise UsageError(_takes_none(kind, list(params)))
    found: dict[str, object] = {}
    for name, value in params.items():
        installed = _installed_name(name, known)
        if installed in found:
            raise UsageError(
                f"{name} and {installed} are the same parameter; pass only one of them"
            )
        if installed in known:
            found[installed] = _of_type(name, value, known[installed])
        elif name not in _ALWAYS_WAS:
            raise UsageError(_unknown_param(kind, name, known))
        elif value != _ALWAYS_WAS[name]:
            raise UsageError(
                f"{name} can only be {_ALWAYS_WAS[name]} with this jax "
                f"({versions.installed().get('jax')}), which has no such parameter"
            )
    return found


def _installed_name(name: str, known: Mapping[str, Any]) -> str:
    if name in known:
        return name
    for synonyms in jaxcompat.SYNONYMS:
        if name in synonyms:
            return next(iter(synonyms & known.keys()), name)
    return name


def _options(kind: Any) -> tuple[Any, ...]:
    """Return the member types of a union, or the type itself."""
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return typing.get_args(kind) if is_union else (kind,)


def _from_text(name: str, text: str | None, kind: Any) -> object:
    options = _options(kind)
    if text is None:
        if bool in options:
            return True
        raise UsageError(f"{name} needs a value: {_expected(kind)}")
    if text.lower() == "none" and type(None) in options:
        return None
    for option in options:
        try:
            return _READERS[_sort(option)](text, option)
        except (ValueError, KeyError):
            continue
    raise UsageError(_wrong(name, text, kind))


def _no_text(text: str, option: Any) -> object:
    raise ValueError


_READERS: Mapping[str, Callable[[str, Any], object]] = {
    "bool": lambda text, _: _BOOLS[text.lower()],
    "int": lambda text, _: int(text, 0),
    "float": lambda text, _: float(text),
    "str": lambda text, _: text,
    "literal": lambda text, option: {str(a): a for a in typing.get_args(option)}[text],
    "flag": lambda text, option: functools.reduce(
        lambda a, b: a | b, (option[part.strip().upper()] for part in text.split("|"))
    ),
    "none": _no_text,
    "callable": _no_text,
}


def _of_type(name: str, value: object, kind: Any) -> object:
    for option in _options(kind):
        if _fits(value, option):
            return value
        if isinstance(value, str) and _sort(option) == "flag":
            return _from_text(name, value, kind)
    raise UsageError(_wrong(name, value, kind))


def _fits(value: object, option: Any) -> bool:
    sort = _sort(option)
    if sort == "literal":
        return any(value == a and type(value) is type(a) for a in typing.get_args(option))
    if sort == "callable":
        return callable(value)
    if sort == "none":
        return value is None
    if sort == "float":
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, option) and (sort == "bool" or not isinstance(value, bool))


def _sort(option: Any) -> str:
    if option is type(None):
        return "none"
    if typing.get_origin(option) is Literal:
        return "literal"
    if not isinstance(option, type):
        return "callable"
    if issubclass(option, enum.Flag):
        return "flag"
    return option.__name__ if option.__name__ in ("bool", "int", "float", "str") else "callable"


_PLAIN = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "none": "none",
    "callable": "a function, which can be passed only from Python",
}


def _expected(kind: Any) -> str:
    return " or ".join(_expected_one(option) for option in _options(kind))


def _expected_one(option: Any) -> str:
    sort = _sort(option)
    if sort == "literal":
        return " or ".join(str(a) for a in typing.get_args(option))
    if sort == "flag":
        return "|".join(member.name.lower() for member in option)
    return _PLAIN[sort]


def _shown(value: object) -> str:
    if isinstance(value, enum.Flag):
        return "|".join(str(member.name).lower() for member in value)
    if callable(value):
        return str(getattr(value, "__name__", value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _wrong(name: str, value: object, kind: Any) -> str:
    return f"{name} must be {_expected(kind)}, not {value!r}"


def _unknown_kind(text: str) -> str:
    name = text.partition("=")[0].strip()
    known = f"{text!r} is not an interpret mode{meant(name, KINDS)}; there are: {', '.join(KINDS)}"
    for kind in ("tpu", "machine"):
        if _installed_name(name, fields(kind)) in fields(kind):
            return f"{known}. {name} is a parameter of one: write {kind},{text}"
    return known


def _takes_none(kind: Kind, names: Sequence[str]) -> str:
    takers = [
        other
        for other in ("tpu", "machine")
        if _installed_name(names[0], fields(other)) in fields(other)
    ]
    hint = f"; {names[0]} is one of {takers[0]}: write {takers[0]},{names[0]}" if takers else ""
    return f"the interpret mode {kind!r} takes no parameters, such as {names[0]}{hint}"


def _unknown_param(kind: Kind, name: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    meant = f" (did you mean {close[0]}?)" if close else ""
    has = "it has" if kind == "machine" else f"jax {versions.installed().get('jax')} has"
    return (
        f"the interpret mode {kind!r} has no parameter {name!r}{meant}; {has}: {', '.join(known)}"
    )
