"""Arrays from `.npy` files. Nothing in them is unpickled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pallas_debug import defaults
from pallas_debug.errors import UsageError


def read(path: str) -> np.ndarray[Any, Any]:
    """Read an array such as `lengths.npy`.

    Raises:
      UsageError: there is no such file, or it does not contain an array of numbers.
    """
    file = Path(path).expanduser()
    if file.suffix != ".npy":
        raise UsageError(
            f"@{path}: only .npy files are read, as numpy.save writes them. For others, pass "
            "--inputs package.module:function, which returns the arguments"
        )
    try:
        size = file.stat().st_size
        if size > defaults.MAX_INPUT_BYTES:
            raise UsageError(
                f"@{path} has {size:,} bytes; at most {defaults.MAX_INPUT_BYTES:,} are read"
            )
        return np.asarray(np.load(file, allow_pickle=False))
    except OSError as error:
        raise UsageError(f"@{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError) as error:
        raise UsageError(f"@{path} is not an array of numbers: {error}") from error
