"""Arrays from `.npy` and `.npz` files. Nothing in them is unpickled."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from pallas_debug import defaults
from pallas_debug.errors import UsageError


def read(path: str) -> np.ndarray[Any, Any]:
    """Read `lengths.npy`, or `inputs.npz:lengths`.

    Raises:
      UsageError: there is no such file or array, or the array does not contain numbers.
    """
    name, key = path, None
    if not Path(path).exists() and ".npz:" in path:
        name, _, key = path.rpartition(":")
    file = Path(name).expanduser()
    if file.suffix not in (".npy", ".npz"):
        raise UsageError(
            f"@{path}: only .npy and .npz files are read, as numpy.save and numpy.savez write "
            "them. For others, pass --inputs package.module:function, which returns the arguments"
        )
    try:
        size = file.stat().st_size
        if size > defaults.MAX_INPUT_BYTES:
            raise UsageError(
                f"@{path} has {size:,} bytes; at most {defaults.MAX_INPUT_BYTES:,} are read"
            )
        found = np.load(file, allow_pickle=False)
        if file.suffix == ".npy":
            return np.asarray(found)
        with found:
            return np.asarray(found[_key(path, key, found.files)])
    except OSError as error:
        raise UsageError(f"@{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(f"@{path} is not an array of numbers: {error}") from error


def _key(path: str, key: str | None, known: list[str]) -> str:
    if key is None and len(known) == 1:
        return known[0]
    if key in known:
        return str(key)
    if not known:
        raise UsageError(f"@{path} has no arrays")
    missing = "name one of its arrays" if key is None else f"there is no array {key!r}"
    file = path if key is None else path.rpartition(":")[0]
    raise UsageError(f"@{path}: {missing}, as in @{file}:{known[0]}; there are {', '.join(known)}")
