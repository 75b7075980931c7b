"""Parser for `--arg`: abstract arrays such as `bf16[1,2,512,128]`, and Python literals."""

from __future__ import annotations

import ast
import re
from typing import Any

from pallas_debug.errors import UsageError

_NAMED = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<value>.*)", re.DOTALL)
_ARRAY = re.compile(r"(?P<dtype>[A-Za-z][\w]*)\[(?P<shape>[\d,\s]*)\]")

_SHORT = {
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "pred": "bool",
    "c64": "complex64",
    "c128": "complex128",
    "f8e4m3fn": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
} | {
    f"{letter}{bits}": f"{kind}{bits}"
    for letter, kind in (("i", "int"), ("s", "int"), ("u", "uint"))
    for bits in (2, 4, 8, 16, 32, 64)
}


def parse(texts: tuple[str, ...]) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and keyword arguments.

    Raises:
      UsageError: a text is neither an array nor a Python literal.
    """
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for text in texts:
        named = _NAMED.fullmatch(text.strip())
        if named:
            kwargs[named["name"]] = _value(named["value"])
        else:
            args.append(_value(text))
    return args, kwargs


def _value(text: str) -> Any:
    text = text.strip()
    array = _ARRAY.fullmatch(text)
    if array:
        from pallas_debug._api.dump import shape_dtype

        shape = [int(size) for size in array["shape"].replace(" ", "").split(",") if size]
        return shape_dtype(shape, _SHORT.get(array["dtype"], array["dtype"]))
    if text in ("true", "false"):
        return text == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError) as error:
        raise UsageError(
            f"--arg {text!r} is neither an abstract array such as bf16[1,2,512,128] "
            "nor a Python value such as 128, True or 'relu'"
        ) from error
