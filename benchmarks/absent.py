"""Imports of other projects' modules without the packages that only a server needs."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any


class _AbsentType(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class _Absent(metaclass=_AbsentType):
    """Anything of a package that is not installed: it can be named, subclassed and called."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __call__(self, *_: object, **__: object) -> _Absent:
        return self

    def __getattr__(self, name: str) -> _Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


class AbsentPackages(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finder of those packages of a list that are not installed."""

    def __init__(self, *names: str) -> None:
        self._names = {name for name in names if importlib.util.find_spec(name) is None}

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in self._names:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__getattr__ = _AbsentType.__getattr__.__get__(_Absent)  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def import_bare(package: str, folder: Path) -> None:
    """Register a package without running its `__init__`."""
    module = types.ModuleType(package)
    module.__path__ = [str(folder)]
    sys.modules[package] = module
