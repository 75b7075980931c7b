"""Names missing from Pallas: found in untraced branches, without false positives."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.analysis import names
from pallas_debug.model import Finding

IMPORTS = """\
import jax
import jax.experimental.pallas as pl
from jax.experimental.pallas import tpu as pltpu
"""

LOAD = (
    "read the ref: ref[index]; with a mask, load(ref.at[index], mask=…) of "
    "jax.experimental.pallas.triton for a GPU, or of jax.experimental.pallas.tpu"
)
STORE = (
    "write to the ref: ref[index] = value; with a mask, store(ref.at[index], value, mask=…) of "
    "jax.experimental.pallas.triton for a GPU, or of jax.experimental.pallas.tpu"
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "kernels.py"


def found(source: Path, code: str, at: int | None = None, imports: str = IMPORTS) -> list[Finding]:
    source.write_text(imports + textwrap.dedent(code))
    return names.look(source, at)


def lines(findings: list[Finding]) -> list[int]:
    return [finding.source.line for finding in findings if finding.source is not None]


def test_a_name_that_is_called_otherwise_today(source: Path) -> None:
    (finding,) = found(source, "params = pltpu.TPUCompilerParams()\n")
    assert (finding.kind, finding.kernel, finding.engines) == (
        "RemovedName",
        "no kernel",
        ("static",),
    )
    assert finding.source is not None
    assert (finding.source.file, finding.source.line) == (str(source), 4)
    assert finding.source.text == "params = pltpu.TPUCompilerParams()"
    assert finding.message == (
        "module 'jax.experimental.pallas.tpu' has no attribute 'TPUCompilerParams'"
    )
    assert finding.cause == "it was renamed, moved or removed, or is newer than this jax"
    assert finding.advice == "write pltpu.CompilerParams"


@pytest.mark.parametrize(
    "used, advice",
    [
        ("pltpu.TPUMemorySpace", "write pltpu.MemorySpace, and pl.ANY for TPUMemorySpace.ANY"),
        ("pltpu.TPUInterpretParams", "write pltpu.InterpretParams"),
        ("pltpu.ANY", "write pl.ANY"),
        ("pltpu.run_scoped", "write pl.run_scoped"),
        ("pl.SMEM", "write pltpu.SMEM"),
        ("pl.load", LOAD),
        ("pl.store", STORE),
        ("pl.swap", "read the ref, then write to it: ref[index] = value"),
        (
            "pltpu.repeat",
            "write jnp.tile, as in jnp.tile(x, (n, 1)) for axis 0; jnp.repeat has another order",
        ),
    ],
)
def test_what_took_its_place(source: Path, used: str, advice: str) -> None:
    (finding,) = found(source, f"{used}\n")
    assert finding.advice == advice


def test_a_name_that_is_newer_than_this_jax(source: Path) -> None:
    if hasattr(pltpu, "TensorCoreMesh"):
        pytest.skip("this jax has it")
    (finding,) = found(source, 'mesh = pltpu.TensorCoreMesh(axis_name="core", num_cores=1)\n')
    assert (finding.advice or "").startswith("it needs jax ≥ 0.11; before, ")


def test_the_class_of_triton(source: Path) -> None:
    code = "from jax.experimental.pallas import triton as plt\nplt.TritonCompilerParams()\n"
    (finding,) = found(source, code)
    assert finding.advice == "write CompilerParams, of jax.experimental.pallas.triton"


def test_of_the_rest_the_changelog(source: Path) -> None:
    (finding,) = found(source, "from jax.experimental.pallas import triton as pt\npt.gone\n")
    assert finding.advice == "look for its replacement in the Pallas changelog"


def test_several_on_one_line_are_one_finding(source: Path) -> None:
    (finding,) = found(source, "pl.store(o, (), pl.load(x, ()))\n")
    assert [line.rpartition(" ")[2] for line in finding.message.splitlines()] == [
        "'store'",
        "'load'",
    ]
    assert finding.advice == (STORE + "; " + LOAD)


def test_functions_and_imports_are_searched(source: Path) -> None:
    code = """
    def kernel(x_ref, o_ref):
        pl.store(o_ref, (), 0)
        def inner():
            from jax.experimental.pallas.tpu import TPUMemorySpace
        return pl.load(
            x_ref, ())
    """
    assert lines(found(source, code)) == [6, 8, 9]


GUARDED = [
    "def kernel(x_ref, old):\n    if old:\n        pl.load(x_ref, ())",
    "if hasattr(pltpu, 'TPUCompilerParams'):\n    pltpu.TPUCompilerParams()",
    "P = pltpu.TPUCompilerParams if hasattr(pltpu, 'TPUCompilerParams') else pltpu.CompilerParams",
    "P = getattr(pltpu, 'CompilerParams', None) or pltpu.TPUCompilerParams",
    "try:\n    P = pltpu.CompilerParams\nexcept AttributeError:\n    P = pltpu.TPUCompilerParams",
    "try:\n    P = pltpu.TPUCompilerParams\nexcept AttributeError:\n    P = pltpu.CompilerParams",
    "if jax.__version__ < '0.8':\n    P = pltpu.TPUCompilerParams",
    "if jax.__version_info__ >= (0, 8):\n    P = pltpu.CompilerParams\n"
    "else:\n    P = pltpu.TPUCompilerParams",
    "OLD = jax.__version_info__ < (0, 8)\nif OLD:\n    P = pltpu.TPUCompilerParams",
    "from compat import OLD\ndef f():\n    if OLD:\n        return pltpu.TPUCompilerParams()",
    "import compat\nP = pltpu.TPUCompilerParams if compat.OLD else pltpu.CompilerParams",
    "def is_old():\n    return jax.__version_info__ < (0, 8)\n"
    "def f():\n    return pltpu.TPUCompilerParams() if is_old() else None",
    "def f():\n    if jax.__version_info__ >= (0, 8):\n        return pltpu.CompilerParams()\n"
    "    return pltpu.TPUCompilerParams()",
    "if jax.__version_info__ >= (0, 8):\n    raise ImportError('too new')\nP = pltpu.TPUMemorySpace",
    "if not hasattr(pltpu, 'X'):\n    pltpu.TPUCompilerParams = pltpu.CompilerParams\n"
    "P = pltpu.TPUCompilerParams()",
    "setattr(pltpu, 'TPUCompilerParams', pltpu.CompilerParams)\nP = pltpu.TPUCompilerParams()",
    "import contextlib\nwith contextlib.suppress(AttributeError):\n    pltpu.TPUCompilerParams",
    "import pytest\nwith pytest.raises(AttributeError):\n    pltpu.TPUCompilerParams",
    "import pytest\n@pytest.mark.skipif(jax.__version_info__ >= (0, 8), reason='')\n"
    "def test_old():\n    pltpu.TPUCompilerParams",
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    P = pltpu.TPUCompilerParams",
    "match jax.__version_info__[:2]:\n    case (0, 4):\n        P = pltpu.TPUCompilerParams",
]


@pytest.mark.parametrize("code", GUARDED)
def test_who_minds_which_jax_it_is_is_left_alone(source: Path, code: str) -> None:
    assert found(source, code + "\n") == []


OTHERS = [
    "def f(pl):\n    return pl.load(0)",
    "for pl in range(3):\n    pl.load",
    "class pl:\n    load = 0\npl.load",
    "try:\n    from jax.experimental.pallas import tpu as pltpu\nexcept ImportError:\n    pltpu = None"
    "\npltpu.TPUCompilerParams",
    "import json as pltpu\npltpu.load",
    "x = pl.BlockSpec.load",
    "pl.pallas_call, pl.ANY, pltpu.VMEM, pltpu.CompilerParams, pltpu.PrefetchScalarGridSpec",
    "from jax.experimental.pallas import mosaic_gpu as plgpu, triton\nfrom . import load",
    "from jax.experimental.pallas.gone import load\nimport jax.experimental.pallas.gone as gone"
    "\ngone.load",
    "from jax.experimental.pallas import *",
    "def broken(:\n    pl.load",
]


@pytest.mark.parametrize("code", OTHERS)
def test_other_things_of_that_name_are_not_meant(source: Path, code: str) -> None:
    assert found(source, code + "\n") == []


def test_a_file_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert names.look(tmp_path / "gone.py") == []


def test_of_a_function_only_what_it_names_is_looked_at(source: Path) -> None:
    code = """
    def other():
        pl.load

    def body(x_ref, o_ref):
        pl.store(o_ref, (), 0)

    @jax.jit
    def call(x):
        return pl.pallas_call(body, out_shape=x)(x)
    """
    assert lines(found(source, code, at=12)) == [9]
    assert lines(found(source, code, at=11)) == [9]
    assert lines(found(source, code)) == [6, 9]
