"""Wrong arguments of the bundled kernels, and their messages in `data/arguments.txt`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pallas_debug_kernels
import pytest
from jax.sharding import AbstractMesh, AxisType
from pallas_debug_kernels.ops import flash_attention, splash_attention

GOLDEN = Path(__file__).parent / "data" / "arguments.txt"
"""Calls, each with its message below; to add one, add its line and run `pytest --bless`."""

KV = jnp.zeros((2, 256, 64))
SHAPE = (1, 2, 256, 64)
ARRAYS = {"f": "float32", "b": "bfloat16", "h": "float16", "i": "int32", "i8": "int8"}
NAMES = {
    **vars(splash_attention),
    **{op.name: op.function for op in pallas_debug_kernels.operations()},
    **{name: lambda *shape, d=dtype: jnp.zeros(shape, d) for name, dtype in ARRAYS.items()},
    "FlashBlocks": flash_attention.BlockSizes,
    "SplashBlocks": splash_attention.BlockSizes,
    "splash_blocks": partial(
        splash_attention.BlockSizes,
        **dict.fromkeys(splash_attention.BlockSizes.__dataclass_fields__, 128),
    ),
    "splash": lambda **given: splash_attention.splash_attention(
        **{"q": KV, "k": KV, "v": KV, "mask": splash_attention.CausalMask((256, 256)), **given}
    ),
    "SHAPE": SHAPE,
    "PAGES": (2, 8, 16, 64),
    "X": jnp.zeros(SHAPE),
    "RING": AbstractMesh((4,), ("x",), axis_types=(AxisType.Auto,)),
    "np": np,
}


def test_wrong_arguments_are_named(blessed: Callable[[Path, str], None]) -> None:
    shown = []
    calls = [line for line in GOLDEN.read_text().splitlines() if not line.startswith("  ")]
    for call in calls:
        with pytest.raises(ValueError) as error:
            eval(call, dict(NAMES))
        shown.append(f"{call}\n  {error.value}\n")
    blessed(GOLDEN, "".join(shown))
