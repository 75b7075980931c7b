"""Recognition of current messages: kernels that jax and libtpu reject, and the explanations."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refused_calls import refused

from pallas_debug import explain
from pallas_debug.explain.formulas import FORMULAS
from pallas_debug.session import Options, Session


def _load(path: Path) -> Any:
    """A module beside this one, which is no package."""
    spec = importlib.util.spec_from_file_location(f"explain_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


kernels = _load(Path(__file__).with_name("kernels.py"))

HERE = ".".join(jax.__version__.split(".")[:2])
LIBTPU = tuple(map(int, importlib.metadata.version("libtpu").split(".")))


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    options = Options(
        dumps=tmp_path_factory.mktemp("provoked") / "dumps",
        targets=("v5e", "v4", "v6e"),
        interpret="off",
        jobs=1,
    )
    with Session(options) as session:
        yield session


@pytest.mark.parametrize("case", kernels.REFUSED, ids=lambda case: case.entry)
def test_a_kernel_that_is_refused(session: Session, case: Any) -> None:
    failure, kernel = refused(session, case.call, case.args, case.target, x64=case.x64)
    if (case.only and case.only != HERE) or (case.before and case.before <= LIBTPU):
        assert failure is None
        return
    found = explain.of_failure(failure, kernel)
    assert found is not None, failure.message
    assert found.id == case.entry


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_compiles_in_place_of_its_function(session: Session, name: str) -> None:
    def written(x: jax.Array) -> Any:
        return eval(FORMULAS[name], {"jax": jax, "jnp": jnp, "x": x})

    first, last = (1, 3) if name == "acosh" else (-1, 1)
    x = jnp.linspace(first, last, 16 * 128).reshape(16, 128)
    function = getattr(jax.lax, name)
    np.testing.assert_allclose(written(x), function(x), rtol=1e-4, atol=1e-6)
    assert refused(session, kernels.elementwise(written), (kernels.X,), "v5e")[0] is None
    failure, kernel = refused(session, kernels.elementwise(function), (kernels.X,), "v5e")
    found = explain.of_failure(failure, kernel)
    assert found.advice == f"write {FORMULAS[name]}"
    assert f"Unimplemented primitive in Pallas TPU lowering for tc: {name}." in failure.message


@pytest.mark.slow
def test_a_compiler_that_is_not_given_enough_time(tmp_path: Path) -> None:
    """A compiler that an earlier test has started takes some milliseconds, too."""
    options = Options(
        dumps=tmp_path / "dumps", targets=("v5e",), interpret="off", jobs=1, timeout=1e-4
    )
    with Session(options) as session:
        failure, kernel = refused(session, kernels.calling(kernels.copy), (kernels.X,), "v5e")
    found = explain.of_failure(failure, kernel)
    assert found is not None, failure.message
    assert found.id.startswith("compiler-timeout")
