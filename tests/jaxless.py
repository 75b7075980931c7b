"""A virtual environment that has what a base installation has: no jax.

It holds the project from its source and links to exactly those distributions that `pyproject.toml`
and they themselves require, so a dependency that is used and not declared is missing in it. That
needs no network and takes half a second.
"""

from __future__ import annotations

import functools
import os
import subprocess
import tomllib
import venv
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
SOURCES = (ROOT, ROOT / "kernels", ROOT / "pytest_plugin")
PROJECT = "pallas-debug"
Run = Callable[..., subprocess.CompletedProcess[str]]


@functools.cache
def project() -> dict[str, object]:
    found: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def declared(*extras: str) -> list[str]:
    """Requirements of the project with these extras."""
    optional = project()["optional-dependencies"]
    needed = project()["dependencies"]
    assert isinstance(optional, dict)
    assert isinstance(needed, list)
    return [*needed, *(text for extra in extras for text in optional[extra])]


def distributions(requirements: Iterable[str]) -> dict[str, metadata.Distribution]:
    """The distributions that these requirements install, with those that they require."""
    found: dict[str, metadata.Distribution] = {}
    todo = [(Requirement(text), frozenset({""})) for text in requirements]
    while todo:
        requirement, extras = todo.pop()
        marker = requirement.marker
        if marker and not any(marker.evaluate({"extra": extra}) for extra in extras):
            continue
        distribution = metadata.distribution(requirement.name)
        if requirement.name not in found or requirement.extras:
            found[requirement.name] = distribution
            asked = frozenset({"", *requirement.extras})
            todo += [(Requirement(text), asked) for text in distribution.requires or ()]
    return found


def environment(folder: Path, *extras: str) -> Path:
    """Make the environment in `folder`, and return its Python."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for distribution in distributions(declared(*extras)).values():
        for file in distribution.files or ():
            top = site / file.parts[0]
            if file.parts[0] != ".." and not top.is_symlink():
                top.symlink_to(str(distribution.locate_file(file.parts[0])))
    (site / "project.pth").write_text("".join(f"{path}\n" for path in SOURCES))
    ours = site / "pallas_debug-0.dist-info"
    ours.mkdir()
    points = project()["entry-points"]
    assert isinstance(points, dict)
    lines = [
        line
        for group, entries in points.items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()))
    ]
    (ours / "entry_points.txt").write_text("\n".join(lines))
    (ours / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {PROJECT}\nVersion: 0\n")
    return folder / "bin" / "python"


@pytest.fixture(scope="session")
def jaxless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment with the base installation."""
    return environment(tmp_path_factory.mktemp("jaxless"))


@pytest.fixture(scope="session")
def jaxless_pytest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment with the extra `pytest`."""
    return environment(tmp_path_factory.mktemp("jaxless_pytest"), "pytest")


def run(python: Path, folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run this Python without what the tests' own environment could lend it."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
    return subprocess.run(
        [str(python), *map(str, words)],
        cwd=folder,
        env=kept,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
