"""Subscriber that keeps what a session sees in a dump directory."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from pallas_debug.hooks import hookimpl
from pallas_debug.model import Compilation, Kernel, Target
from pallas_debug.store.writer import Store


class StorePlugin:
    """Keeps what a session sees in a dump directory."""

    def __init__(self, store: Store) -> None:
        self.store = store

    @hookimpl
    def pallas_debug_kernel_captured(self, kernel: Kernel, jaxpr: str, source: str | None) -> None:
        self.store.put_kernel(kernel, jaxpr=jaxpr, source=source)

    @hookimpl
    def pallas_debug_claim_compilation(
        self, kernel: Kernel, target: Target
    ) -> AbstractContextManager[None]:
        return self.store.claim(kernel, target.name)

    @hookimpl
    def pallas_debug_find_compilation(
        self, kernel: Kernel, target: Target, key: str
    ) -> Compilation | None:
        return self.store.find_compilation(kernel, target.name, key)

    @hookimpl
    def pallas_debug_compilation_finished(
        self, kernel: Kernel, compilation: Compilation, files: Mapping[str, bytes | Path]
    ) -> None:
        if not compilation.cached:
            self.store.put_compilation(kernel, compilation, files)
