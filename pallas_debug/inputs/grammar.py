"""Grammar of `--arg`: `bf16[8,128]`, `lengths=i32[2]=[512,100]`, `@x.npy`, literals, containers.

    argument  = [name "="] value
    value     = array | "@" file | container | literal | dtype | "key(" seed ")"
    array     = dtype "[" sizes "]" ["=" fill]          sizes "..." : those of the fill
    fill      = "@" file | number | nested list | name ["(" numbers ")"]
    container = "(" values ")" | "[" values "]" | "{" string ":" value … "}"

A literal is anything that Python's `ast.literal_eval` accepts.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from pallas_debug.errors import UsageError

MAX_DEPTH = 32
"""Maximum nesting of lists, tuples and dicts."""

MAX_SHOWN = 200
"""Maximum number of characters quoted in an error."""

_NAMED = re.compile(r"\s*(?P<name>[A-Za-z_]\w*)\s*=(?P<value>.*)", re.DOTALL)
_ARRAY = re.compile(r"(?P<dtype>[A-Za-z]\w*)\[(?P<shape>[^\][()]*)\]")
_WORD = re.compile(r"[A-Za-z_]\w*")
_STRING = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"", re.DOTALL)
_NUMBER = re.compile(
    r"[+-]?(?:0[xX][\da-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+"
    r"|(?:\d[\d_]*(?:\.[\d_]*)?|\.\d[\d_]*)(?:[eE][+-]?\d+)?[jJ]?|inf\b|nan\b)"
)
_FILE = re.compile(r"[^\s,()\[\]{}]+")

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
    "full": (1, 1, "full(-1)"),
    "arange": (0, 2, "arange, arange(start), arange(start, step)"),
    "normal": (0, 2, "normal, normal(mean, deviation)"),
    "uniform": (0, 2, "uniform, uniform(low, high)"),
    "randint": (1, 2, "randint(high), randint(low, high)"),
    "permutation": (0, 0, "permutation"),
}
"""Names of fills, with the minimum and maximum number of arguments and their syntax."""

_KEYS = ("key", "PRNGKey")

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
    """A `.npy` file, or an array of an `.npz` file."""

    path: str


@dataclass(frozen=True, kw_only=True)
class FillSpec:
    """A named way to fill an array."""

    name: str
    numbers: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class KeySpec:
    """A PRNG key, typed or as raw integers."""

    seed: int
    is_raw: bool


@dataclass(frozen=True, kw_only=True)
class DtypeSpec:
    """A dtype as a value."""

    name: str


def parse(
    texts: tuple[str, ...], is_dtype: Callable[[str], bool]
) -> tuple[list[Any], dict[str, Any]]:
    """Parse arguments; arrays, files, keys and dtypes among the values are specs.

    Args:
      is_dtype: returns whether a word is the full name of a dtype.

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
        parser = _Parser(text, start, is_dtype, arrays)
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
    """Recursive descent over one text."""

    def __init__(self, text: str, at: int, is_dtype: Callable[[str], bool], arrays: int) -> None:
        self._text = text
        self._at = at
        self._is_dtype = is_dtype
        self.arrays = arrays

    def whole(self) -> Any:
        rest = self._text[self._at :].strip()
        if rest in ("true", "false"):
            return rest == "true"
        try:
            return ast.literal_eval(rest)
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            pass
        value = self._value(0, is_whole=True)
        self._skip()
        if self._at < len(self._text):
            before = self._text[: self._at].rpartition("=")[2].strip()
            if self._peek() == "(" and self._dtype(before) is not None:
                self._fail(f"sizes are written in brackets, as in {before}[8,128]")
            self._fail(f"expected the end, found {self._found()}")
        return value

    def _value(self, depth: int, *, is_whole: bool = False) -> Any:
        self._skip()
        if depth > MAX_DEPTH:
            self._fail(f"nested more than {MAX_DEPTH} deep")
        if self._peek() == "@":
            return self._array(None, None, self._at, self._file(is_whole=is_whole))
        array = _ARRAY.match(self._text, self._at)
        if array is not None:
            return self._typed(array, is_whole=is_whole)
        if self._peek() and self._peek() in "([{":
            return self._container(depth)
        string = self._take(_STRING)
        if string is not None:
            return ast.literal_eval(string)
        number = self._take(_NUMBER)
        if number is not None:
            return self._number(number)
        return self._word()

    def _container(self, depth: int) -> Any:
        opening = self._peek()
        self._at += 1
        if opening == "{":
            entries, _ = self._items("}", lambda: (self._key(), self._value(depth + 1)))
            return dict(entries)
        values, comma = self._items({"(": ")", "[": "]"}[opening], lambda: self._value(depth + 1))
        if opening == "(":
            return tuple(values) if comma or len(values) != 1 else values[0]
        return values

    def _key(self) -> Any:
        key = self._take(_STRING)
        if key is None:
            self._fail(f"expected a key such as 'weights', found {self._found()}")
        if not self._accept(":"):
            self._fail(f"expected ':', found {self._found()}")
        return ast.literal_eval(key)

    def _items(self, closing: str, item: Callable[[], Any]) -> tuple[list[Any], bool]:
        """Read items up to a closing sign; also return whether a comma follows the last."""
        found: list[Any] = []
        comma = False
        while not self._accept(closing):
            if found and not comma:
                self._fail(f"expected ',' or {closing!r}, found {self._found()}")
            self._skip()
            found.append(item())
            comma = self._accept(",")
        return found, comma

    def _typed(self, found: re.Match[str], *, is_whole: bool) -> ArraySpec:
        start = self._at
        dtype = self._dtype(found["dtype"])
        if dtype is None:
            self._unknown_dtype(found["dtype"])
        self._at = found.start("shape")
        shape = self._shape(found["shape"])
        self._at = found.end()
        if not self._accept("="):
            if shape is None:
                self._fail(f"{found[0]} takes its sizes from values: expected '='")
            return self._array(dtype, shape, start, None)
        self._skip()
        if self._peek() == "@":
            fill: Any = self._file(is_whole=is_whole)
        elif self._peek() == "[":
            fill = self._numbers(0)
        else:
            fill = self._fill()
        if shape is None and (isinstance(fill, FillSpec) or not isinstance(fill, (list, FileSpec))):
            self._fail(f"{found[0]} takes its sizes from a list or a file")
        return self._array(dtype, shape, start, fill)

    def _array(self, dtype: str | None, shape: Any, start: int, fill: Any) -> ArraySpec:
        self.arrays += 1
        return ArraySpec(
            text=self._text[start : self._at].strip(),
            dtype=dtype,
            shape=shape,
            fill=fill,
            number=self.arrays - 1,
        )

    def _shape(self, text: str) -> tuple[int, ...] | None:
        if text.strip() == "...":
            return None
        sizes = [size.strip() for size in text.split(",")]
        if sizes[-1] == "":
            sizes.pop()
        for size in sizes:
            if not size.isascii() or not size.isdigit():
                self._fail(
                    f"{size!r} is not a size: sizes are integers separated by commas, as in "
                    "f32[8,128]; f32[] is a scalar"
                )
        return tuple(map(int, sizes))

    def _numbers(self, depth: int) -> list[Any]:
        """A nested list of numbers and bools."""
        if depth > MAX_DEPTH:
            self._fail(f"nested more than {MAX_DEPTH} deep")
        self._at += 1
        found, _ = self._items(
            "]", lambda: self._numbers(depth + 1) if self._peek() == "[" else self._plain()
        )
        return found

    def _plain(self) -> Any:
        """A number or a bool."""
        self._skip()
        for word, value in (("True", True), ("true", True), ("False", False), ("false", False)):
            if self._take(re.compile(rf"{word}\b")) is not None:
                return value
        number = self._take(_NUMBER)
        if number is None:
            self._fail(f"expected a number, found {self._found()}")
        return self._number(number)

    def _fill(self) -> Any:
        self._skip()
        word = _WORD.match(self._text, self._at)
        name = word[0] if word else ""
        if not word or name in ("inf", "nan", "True", "true", "False", "false"):
            if not word and _NUMBER.match(self._text, self._at) is None:
                self._fail(
                    f"expected values, found {self._found()}: a list, a number, @file.npy, or one "
                    f"of {', '.join(FILLS)}"
                )
            return self._plain()
        if name not in FILLS:
            near = difflib.get_close_matches(name, FILLS, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            self._fail(f"{name!r} is not a fill{hint}; there are {', '.join(FILLS)}")
        self._at = word.end()
        numbers = self._parameters()
        least, most, usage = FILLS[name]
        if not least <= len(numbers) <= most:
            self._fail(f"{name} is written {usage}")
        return FillSpec(name=name, numbers=tuple(numbers))

    def _parameters(self) -> list[Any]:
        return self._items(")", self._plain)[0] if self._accept("(") else []

    def _file(self, *, is_whole: bool) -> FileSpec:
        self._at += 1
        if self._peek() in ("'", '"'):
            path = self._take(_STRING)
            if path is None:
                self._fail("expected a closing quote")
            return FileSpec(path=ast.literal_eval(path))
        if is_whole:  # nothing can follow, so that a name with spaces or commas needs no quotes
            path, self._at = self._text[self._at :].strip(), len(self._text)
        else:
            path = self._take(_FILE)
        if not path:
            self._fail("expected a file after '@', such as @lengths.npy")
        return FileSpec(path=path)

    def _word(self) -> Any:
        start = self._at
        word = self._take(_WORD)
        if word is None:
            self._fail(f"expected a value, found {self._found()}")
        constants = {"None": None, "True": True, "true": True, "False": False, "false": False}
        if word in constants:
            return constants[word]
        if word in _KEYS:
            numbers = self._parameters()
            if len(numbers) != 1 or not isinstance(numbers[0], int):
                self._fail(f"{word} is written {word}(0)")
            return KeySpec(seed=numbers[0], is_raw=word == "PRNGKey")
        dtype = self._dtype(word)
        if self._peek() == "[":
            if dtype is None:
                self._unknown_dtype(word)
            self._fail("expected sizes and ']', as in f32[8,128]")
        if dtype is not None:
            return DtypeSpec(name=dtype)
        self._at = start
        if word in FILLS:
            self._fail(f"{word!r} needs a dtype and sizes before it, as in f32[8,128]={word}")
        name = _NAMED.fullmatch(self._text)
        before = f"{name['name']}=" if name else ""
        return self._fail(
            f"{word!r} is not a value; a string needs quotes inside those of the shell, as in "
            f"--arg \"{before}'{word}'\""
        )

    def _unknown_dtype(self, name: str) -> NoReturn:
        usual = [_USUAL[name]] if name in _USUAL else []
        near = usual or difflib.get_close_matches(name, [*SHORT, *SHORT.values()], n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        self._fail(
            f"unknown dtype {name!r}{hint}; "
            "write it as jax does, such as bf16, f32, i32 or float8_e4m3fn"
        )

    def _dtype(self, name: str) -> str | None:
        full = SHORT.get(name, name)
        return full if name in SHORT or self._is_dtype(full) else None

    def _skip(self) -> None:
        while self._peek().isspace():
            self._at += 1

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _accept(self, sign: str) -> bool:
        self._skip()
        if self._peek() != sign:
            return False
        self._at += 1
        return True

    def _take(self, pattern: re.Pattern[str]) -> str | None:
        found = pattern.match(self._text, self._at)
        if found is None:
            return None
        self._at = found.end()
        return found[0]

    def _found(self) -> str:
        return repr(self._peek()) if self._peek() else "the end"

    def _fail(self, problem: str) -> NoReturn:
        text = self._text if len(self._text) <= MAX_SHOWN else f"{self._text[:MAX_SHOWN]}…"
        raise UsageError(f"--arg {text!r}, column {self._at + 1}: {problem}; {FORMS}")

    def _number(self, text: str) -> Any:
        if text.lstrip("+-") in ("inf", "nan"):
            return float(text)
        try:
            return ast.literal_eval(text.lstrip("+"))
        except (ValueError, SyntaxError):  # 007, or thousands of digits
            self._at -= len(text)
            self._fail(f"expected a number, found {text[:20]!r}")
