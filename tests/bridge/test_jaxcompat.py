"""The door to jax: names that are there, and names that are not."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pallas_debug.bridge import jaxcompat
from pallas_debug.errors import IncompatibleJaxError


def test_the_installed_jax_has_every_name() -> None:
    assert jaxcompat.missing() == []


def test_jax_is_not_imported_for_its_names() -> None:
    code = "import sys\nfrom pallas_debug.bridge import jaxcompat\nassert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_module_may_have_moved() -> None:
    moved = jaxcompat.Internal("jax._src.nowhere", "jax._src.core", names="Jaxpr")
    assert moved.Jaxpr is jaxcompat.jax_core.Jaxpr


@pytest.mark.parametrize("path", ["jax._src.core", "jax._src.nowhere"])
def test_a_missing_name_matches_nothing(path: str) -> None:
    gone = jaxcompat.Internal(path, names="renamed_p")
    assert not isinstance(1, gone.renamed_p)
    assert {gone.renamed_p: 1}.get(jaxcompat.loops.scan_p) is None
    with pytest.raises(IncompatibleJaxError, match=rf"has no `{path}.renamed_p`, which this needs"):
        gone.renamed_p(1)
    assert f"{path}.renamed_p" in jaxcompat.missing()
    jaxcompat._internals.remove(gone)


def test_versions_of_a_name() -> None:
    some = jaxcompat.Internal("jax._src.core", names="a b[99.0-] c[-0.1] d[0.10-0.99]")
    assert list(some.expected()) == ["a", "d"]
    jaxcompat._internals.remove(some)
