"""Bytecode of the modules that the project and its tests import, written by importing them.

pip would compile each of the 9,000 modules of the environment, for half a minute of CPU; a third of
them is ever imported. They are compiled here and not with their first use, since a process keeps
nothing that it compiles where PYTHONDONTWRITEBYTECODE is set, as it is in many containers.
"""

from __future__ import annotations

import compileall
import contextlib
import importlib
import sys

MODULES = (
    "jax.experimental.pallas.tpu",
    "jax.experimental.checkify",
    "jax.experimental.shard_map",
    "jax.experimental.mosaic.gpu",
    "jax.experimental.pallas.mosaic_gpu",
    "libtpu",
    "pytest",
    "xdist.plugin",
    "xdist.remote",
    "hypothesis.strategies",
    "build.__main__",
    "fsspec.implementations.memory",
    "gcsfs",
    "hatchling.build",
    "mkdocs.commands.build",
    "material",
    "moto.server",
    "moto.s3.urls",
    "s3fs",
    "selenium.webdriver",
    "importlinter.cli",
    "markdown.extensions",
    "pygments.formatters.html",
    "pygments.lexers.python",
    "pymdownx.superfences",
    "patiencediff",
    "msgspec",
    "scipy.special",
)
"""Modules to import; those that this jax lacks are left out."""

PACKAGES = ("rich", "textual")
"""Packages to compile whole: they import their modules as they are used."""


def main() -> None:
    sys.dont_write_bytecode = False
    for name in MODULES:
        # Not all are there in each release, and what a test needs and lacks it will say.
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    for name in PACKAGES:
        for folder in importlib.import_module(name).__path__:
            compileall.compile_dir(folder, quiet=2)


if __name__ == "__main__":
    main()
