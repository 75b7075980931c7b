"""Names missing from the installed jax, as `verify` reports them: traced, and on import."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

DOUBLE = """\
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

def double(x):
    def kernel(x_ref, o_ref):
        o_ref[...] = pl.load(x_ref, (slice(None), slice(None)))

    params = pltpu.TPUCompilerParams()
    return pl.pallas_call(kernel, out_shape=x, compiler_params=params)(x)

if __name__ == "__main__":
    double(jnp.ones((8, 128)))
"""

AT_IMPORT = DOUBLE.replace("def double", "PARAMS = pltpu.TPUMemorySpace.ANY\n\ndef double")


@pytest.fixture
def verified(command: Any, tmp_path: Path) -> Any:
    """Verifies `double.py` of that text; gives the findings and the whole answer."""

    def verify(text: str, *arguments: str) -> tuple[list[dict[str, Any]], Any]:
        (tmp_path / "double.py").write_text(text)
        done = command("verify", *arguments, "-e", "static", "-t", "v5e", "--json")
        assert done.returncode in (0, 1), done.stderr
        return json.loads(done.stdout)["findings"], done

    return verify


def where(findings: list[dict[str, Any]]) -> list[tuple[str, int, str]]:
    return [(f["kind"], f["witness"]["source"]["line"], ", ".join(f["engines"])) for f in findings]


def test_the_one_that_the_trace_stumbles_over(verified: Any) -> None:
    findings, done = verified(DOUBLE, "double:double", "--arg", "f32[8,128]")
    assert where(findings) == [("RemovedName", 9, "trace")]
    assert findings[0]["advice"] == "write pltpu.CompilerParams"
    assert done.returncode == 1


def test_one_in_a_kernel(verified: Any) -> None:
    text = DOUBLE.replace("pltpu.TPUCompilerParams()", "None")
    findings, _ = verified(text, "double:double", "--arg", "f32[8,128]")
    assert where(findings) == [("RemovedName", 7, "trace")]
    assert findings[0]["kernel"] == "kernel"


@pytest.mark.parametrize(
    "arguments", [["double.py"], ["-m", "double"], ["double:double", "--arg", "f32[8,128]"]]
)
def test_a_module_that_cannot_be_imported_for_it(verified: Any, arguments: list[str]) -> None:
    findings, done = verified(AT_IMPORT, *arguments)
    assert where(findings) == [("RemovedName", 5, "trace")]
    assert "Traceback" not in done.stderr


def test_dump_says_that_a_module_cannot_be_imported(command: Any, tmp_path: Path) -> None:
    (tmp_path / "double.py").write_text(AT_IMPORT)
    done = command("dump", "double:double", "--arg", "f32[8,128]")
    assert done.returncode == 1
    assert "double raised AttributeError when it was imported: module " in done.stderr
    assert "PARAMS = pltpu.TPUMemorySpace.ANY" in done.stderr
    assert "importlib" not in done.stderr
