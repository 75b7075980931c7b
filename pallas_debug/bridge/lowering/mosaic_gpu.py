"""Texts that Mosaic GPU can print while jax lowers a kernel, since jax 0.12.

jax prints them if `MOSAIC_GPU_DUMP_TO` is set, for the whole process and without locations.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from pallas_debug.bridge import patches
from pallas_debug.bridge.active import ThreadValue
from pallas_debug.bridge.jaxprs.params import gpu_backend

_texts = ThreadValue[dict[str, str] | None](None)
_module = ThreadValue[Any](None)


@contextlib.contextmanager
def collecting(params: Mapping[str, Any], texts: dict[str, str]) -> Iterator[None]:
    """Put the texts of a kernel that this thread lowers for Mosaic GPU into `texts`, by name."""
    if gpu_backend(params) != "Mosaic GPU":
        yield
        return
    with _texts.setting(texts), _module.setting(None), patches.installed(patches.MOSAIC_GPU):
        yield


def with_dumps(options_of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Replacement for what reads the environment: everything is printed."""

    @functools.wraps(options_of)
    def options(module: Any) -> Any:
        given = options_of(module)
        if _texts.value is None:
            return given
        _module.value = module
        return SimpleNamespace(
            module_basename=given.module_basename,
            dump_path="",
            mlir_passes=True,
            constraint_system=True,
            resources=True,
        )

    return options


def keeping(dump: Callable[[str, str, str], None]) -> Callable[[str, str, str], None]:
    """Replacement for what prints, which keeps the text; that of a module with locations."""

    @functools.wraps(dump)
    def keep(content: str, name: str, path: str) -> None:
        if _texts.value is None:
            dump(content, name, path)
            return
        what = name.partition(".")[2].removesuffix(".txt")
        if what.endswith("_layout_inference"):
            content = _module.value.operation.get_asm(enable_debug_info=True)
        _texts.value[what] = content

    return keep
