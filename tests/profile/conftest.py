"""Profiles of kernels, compiled by the real compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pallas_debug
from pallas_debug.profile.stats import Profile
from pallas_debug.store import open_dumps
from pallas_debug.store.profiles import read_profile


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Profile]:
    """Compiles the only kernel that a function calls."""

    def profile(function: Any, *args: Any, target: str = "v6e", **options: Any) -> Profile:
        folder = tmp_path_factory.mktemp("dumps")
        (dump,) = pallas_debug.dump(function, *args, targets=target, to=folder, **options)
        assert dump.ok, dump.compilations
        stored = open_dumps(folder).find(dump.name)
        found = read_profile(stored, stored.target(target))
        assert found is not None
        return found.profile

    return profile
