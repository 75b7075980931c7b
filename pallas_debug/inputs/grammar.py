"""Grammar of `--arg`: `bf16[8,128]`, `lengths=i32[2]=[512,100]`, `@x.npy`, literals, containers.

    argument  = [name "="] value
    value     = array | "@" file | container | literal | dtype | "key(" seed ")"
    array     = dtype "[" sizes "]" ["=" fill]          sizes "..." : those of the fill
    fill      = "@" file | number | nested list | name ["(" numbers ")"]
    container = "(" values ")" | "[" values "]" | "{" string ":" value … "}"

A literal is anything that Python's `ast.literal_eval` accepts. Python parses the text, once `=`
after sizes is replaced by `|`, and each file and each `dtype[]` by a name of the same length.
"""

from __future__ import annotations

import ast
import contextlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, cast

from pallas_debug.errors import UsageError, meant

MAX_SHOWN = 200
"""Maximum number of characters quoted in an error."""

_NAMED = re.compile(r"\s*(?P<name>[A-Za-z_]\w*)\s*=(?P<value>.*)", re.DOTALL)
_STRING = r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\""
_OF_FILE = re.compile(r"\s*(?P<array>[A-Za-z]\w*\[[^\][()]*\]\s*=\s*)?@(?P<file>.*)", re.DOTALL)
"""A file that is the whole value: its name may have spaces and commas."""

_OURS = re.compile(
    rf"@(?P<file>{_STRING}|[^\s,()\[\]{{}}]*)|{_STRING}"
    r"|(?P<scalar>[A-Za-z]\w*)(?P<empty>\[\s*\])(?P<is_filled>\s*=)?|\]\s*="
)
"""What Python's grammar lacks; strings are matched to pass over them."""

SHORT = {
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "pred": "bool",
    "c64": "complex64",
    "c128": "complex128",
    **{
        f"f8{kind}": f"float8_{kind}"
        for kind in (
            *("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz"),
            "e8m0fnu",
        )
    },
    "f4e2m1fn": "float4_e2m1fn",
} | {
    f"{letter}{bits}": f"{kind}{bits}"
    for letter, kind in (("i", "int"), ("s", "int"), ("u", "uint"))
    for bits in (2, 4, 8, 16, 32, 64)
}
"""Short names of dtypes, as in jaxprs and HLO."""

_USUAL = {"float": "f32", "fp32": "f32", "int": "i32", "half": "f16", "fp16": "f16"}
"""Dtypes that a TPU or GPU programmer means by names of other languages."""

FILLS: dict[str, tuple[int, int, str]] = {
    "zeros": (0, 0, "zeros"),
    "ones": (0, 0, "ones"),
    "arange": (0, 2, "arange, arange(start), arange(start, step)"),
    "normal": (0, 2, "normal, normal(mean, deviation)"),
    "uniform": (0, 2, "uniform, uniform(low, high)"),
    "randint": (1, 2, "randint(high), randint(low, high)"),
    "permutation": (0, 0, "permutation"),
}
"""Names of fills, with the minimum and maximum number of arguments and their syntax."""

_KEYS = ("key", "PRNGKey")
_WORDS = {"inf": math.inf, "nan": math.nan, "true": True, "false": False}

FORMS = (
    "an argument is an array (f32[8,128], i32[2]=[512,100], f32[8,128]=ones, "
    "i32[8]=randint(0,100), @lengths.npy), a tuple, list or dict of them, or a Python value such "
    "as 128, True or 'relu'"
)


@dataclass(frozen=True, kw_only=True)
class ArraySpec:
    """An array.

    Attributes:
      text: as written.
      dtype: jax's name of the dtype; None if the file determines it.
      shape: shape of the array; None if the fill determines it.
      fill: values: a `FileSpec`, a `FillSpec`, a number, or a nested list of numbers; None if there
        are none.
      number: number of arrays before it in all arguments; the seed of random values.
    """

    text: str
    dtype: str | None
    shape: tuple[int, ...] | None
    fill: Any = None
    number: int = 0


@dataclass(frozen=True, kw_only=True)
class FileSpec:
    """A `.npy` file."""

    path: str


@dataclass(frozen=True, kw_only=True)
class FillSpec:
    """A named way to fill an array."""

    name: str
    numbers: tuple[float, ...] = ()


class Builder(Protocol):
    """Constructor of the values that a text describes."""

    def dtype(self, name: str) -> Any:
        """Return the dtype of a full name; None if there is none."""

    def key(self, seed: int, *, is_raw: bool) -> Any:
        """Return a PRNG key, typed or as raw integers."""

    def array(self, spec: ArraySpec) -> Any:
        """Return an array."""


def parse(texts: Sequence[str], builder: Builder) -> tuple[list[Any], dict[str, Any]]:
    """Parse arguments, and build their values.

    Raises:
      UsageError: a text is invalid; the message has the text, the column, and what is accepted
        there.
    """
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    arrays = 0
    for text in texts:
        named = _NAMED.fullmatch(text)
        start = named.start("value") if named else 0
        parser = _Parser(text, start, builder, arrays)
        value = parser.whole()
        arrays = parser.arrays
        if named is None:
            args.append(value)
        elif named["name"] in kwargs:
            raise UsageError(f"--arg {text!r}: {named['name']} was given before")
        else:
            kwargs[named["name"]] = value
    return args, kwargs


class _Parser:
    """Evaluation of one text."""

    def __init__(self, text: str, at: int, builder: Builder, arrays: int) -> None:
        self._text = text
        self._at = at + len(text[at:]) - len(text[at:].lstrip())
        self._builder = builder
        self._files: dict[int, str] = {}
        self._scalars: dict[int, str] = {}
        self.arrays = arrays

    def whole(self) -> Any:
        value = self._text[self._at :].rstrip()
        if (found := _OF_FILE.fullmatch(value)) is not None:
            name = found["file"].strip()
            if not name.startswith(("'", '"')):
                value = f"{value[: found.start('file')]}{name!r}"
        source = _OURS.sub(self._replaced, value)
        try:
            body = ast.parse(source, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            column = getattr(error, "offset", None) or len(source) + 1
            self._fail(str(getattr(error, "msg", error)), self._at + column)
        if isinstance(body, ast.Tuple) and not source.startswith("("):
            self._fail("pass --arg once per argument, or put a tuple in parentheses", self._at + 1)
        return self._value(body)

    def _replaced(self, found: re.Match[str]) -> str:
        if (file := found["file"]) is not None:
            self._files[found.start()] = ast.literal_eval(file) if file[:1] in "'\"" else file
        elif (dtype := found["scalar"]) is not None:
            self._scalars[found.start()] = dtype
            name = "_" * len(dtype + found["empty"])
            return name + (found["is_filled"] or "").replace("=", "|")
        else:
            return found[0] if found[0][0] in "'\"" else found[0].replace("=", "|")
        return "_" * len(found[0])

    def _value(self, node: ast.expr) -> Any:
        with contextlib.suppress(ValueError):
            value = ast.literal_eval(node)
            if value is not ...:
                return value
        match node:
            case ast.Tuple(elts=items):
                return tuple(map(self._value, items))
            case ast.List(elts=items):
                return list(map(self._value, items))
            case ast.Dict(keys=keys, values=values):
                return dict(zip(map(self._key, keys), map(self._value, values), strict=True))
            case ast.BinOp(op=ast.BitOr(), left=left, right=right):
                return self._array(node, *self._type(left), self._fill(right))
            case ast.Subscript():
                return self._array(node, *self._type(node), None)
            case ast.Call(func=ast.Name(id=name), args=args):
                if name in _KEYS:
                    if len(args) != 1 or not isinstance(seed := self._number(args[0]), int):
                        self._fail(f"{name} is written {name}(0)", node)
                    return self._builder.key(seed, is_raw=name == "PRNGKey")
                if self._dtype(name) is not None:
                    self._fail(f"sizes are written in brackets, as in {name}[8,128]", node)
            case ast.Name(id=name):
                return self._name(node, name)
        return self._fail("expected a value", node)

    def _name(self, node: ast.Name, name: str) -> Any:
        if node.col_offset in self._files:
            return self._array(node, None, None, self._fill(node))
        if node.col_offset in self._scalars:
            return self._array(node, *self._type(node), None)
        if name in ("true", "false"):
            return name == "true"
        if (dtype := self._dtype(name)) is not None:
            return self._builder.dtype(dtype)
        if name in FILLS:
            self._fail(f"{name!r} needs a dtype and sizes before it, as in f32[8,128]={name}", node)
        named = _NAMED.fullmatch(self._text)
        before = f"{named['name']}=" if named else ""
        return self._fail(
            f"{name!r} is not a value; a string needs quotes inside those of the shell, as in "
            f"--arg \"{before}'{name}'\"",
            node,
        )

    def _key(self, node: ast.expr | None) -> str:
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            self._fail("expected a key such as 'weights'", node)
        return node.value

    def _type(self, node: ast.expr) -> tuple[str, tuple[int, ...] | None]:
        """Dtype and sizes of an array; no sizes if they are those of the values."""
        sizes: list[ast.expr] = []
        match node:
            case ast.Name() if node.col_offset in self._scalars:
                name = self._scalars[node.col_offset]
            case ast.Subscript(value=ast.Name(id=name), slice=inner):
                sizes = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            case _:
                self._fail("expected an array, as in f32[8,128]=ones", node)
        if (dtype := self._dtype(name)) is None:
            hint = meant(_USUAL.get(name, name), [*SHORT, *SHORT.values()])
            self._fail(
                f"unknown dtype {name!r}{hint}; write it as jax does, such as bf16, f32, i32 or "
                "float8_e4m3fn",
                node,
            )
        found = [one.value if isinstance(one, ast.Constant) else None for one in sizes]
        if found == [...]:
            return dtype, None
        for size, one in zip(found, sizes, strict=True):
            if type(size) is not int:
                self._fail(
                    f"{ast.unparse(one)!r} is not a size: sizes are integers separated by commas, "
                    "as in f32[8,128]; f32[] is a scalar",
                    one,
                )
        return dtype, cast(tuple[int, ...], tuple(found))

    def _fill(self, node: ast.expr) -> Any:
        match node:
            case ast.Name() if node.col_offset in self._files:
                if not (path := self._files[node.col_offset]):
                    self._fail("expected a file after '@', such as @lengths.npy", node)
                return FileSpec(path=path)
            case ast.List():
                return self._numbers(node)
            case ast.Name(id=name) if name not in _WORDS:
                return self._named_fill(node, name, [])
            case ast.Call(func=ast.Name(id=name), args=args):
                return self._named_fill(node, name, list(map(self._number, args)))
        return self._number(node)

    def _named_fill(self, node: ast.expr, name: str, numbers: list[Any]) -> FillSpec:
        if name not in FILLS:
            self._fail(
                f"{name!r} is not a fill{meant(name, FILLS)}; there are {', '.join(FILLS)}", node
            )
        least, most, usage = FILLS[name]
        if not least <= len(numbers) <= most:
            self._fail(f"{name} is written {usage}", node)
        return FillSpec(name=name, numbers=tuple(numbers))

    def _numbers(self, node: ast.expr) -> Any:
        """A nested list of numbers and bools."""
        if isinstance(node, ast.List):
            return list(map(self._numbers, node.elts))
        return self._number(node)

    def _number(self, node: ast.expr) -> Any:
        match node:
            case ast.Name(id=name) if name in _WORDS:
                return _WORDS[name]
            case ast.UnaryOp(op=ast.USub(), operand=ast.Name(id="inf")):
                return -math.inf
        with contextlib.suppress(ValueError):
            if isinstance(value := ast.literal_eval(node), int | float | complex):
                return value
        return self._fail(f"expected a number, found {ast.unparse(node)[:20]!r}", node)

    def _array(self, node: ast.expr, dtype: str | None, shape: Any, fill: Any) -> Any:
        if dtype is not None and shape is None and not isinstance(fill, (list, FileSpec)):
            self._fail("an array of sizes `...` takes them from a list or a file", node)
        self.arrays += 1
        text = self._text[self._at + node.col_offset :]
        assert node.end_col_offset is not None
        spec = ArraySpec(
            text=text[: node.end_col_offset - node.col_offset].strip(),
            dtype=dtype,
            shape=shape,
            fill=fill,
            number=self.arrays - 1,
        )
        return self._builder.array(spec)

    def _dtype(self, name: str) -> str | None:
        full = SHORT.get(name, name)
        return full if name in SHORT or self._builder.dtype(full) is not None else None

    def _fail(self, problem: str, at: ast.expr | int | None) -> NoReturn:
        column = at if isinstance(at, int) else self._at + getattr(at, "col_offset", 0) + 1
        text = self._text if len(self._text) <= MAX_SHOWN else f"{self._text[:MAX_SHOWN]}…"
        raise UsageError(f"--arg {text!r}, column {column}: {problem}; {FORMS}")
