"""`pallas-debug reproduce`, as installed: scripts that need only jax, from any copy of a dump."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BROKEN = """
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl
def refused_by_jax(x_ref, o_ref):
    o_ref[...] = jnp.cumsum(x_ref[...], axis=0)
def refused_by_the_compiler(x_ref, o_ref):
    o_ref[...] = x_ref[...].astype(jnp.float32)
def healthy(x_ref, o_ref):
    o_ref[...] = x_ref[...] + 1
x, y = jnp.ones((8, 128)), jnp.ones((16, 128), jnp.float16)
pl.pallas_call(refused_by_jax, out_shape=x)(x)
pl.pallas_call(refused_by_the_compiler, out_shape=jax.ShapeDtypeStruct(y.shape, x.dtype))(y)
pl.pallas_call(healthy, out_shape=x)(x)
"""

REFUSED = {
    "refused_by_jax": ("lowering", "Unimplemented primitive in Pallas TPU lowering for tc: cumsum"),
    "refused_by_the_compiler": ("compile", "Invalid vector type for load"),
}

ALONE = """
import runpy, sys
for script in sys.argv[1:]:
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        print("exit", end.code, [m for m in sys.modules if m.startswith("pallas_debug")])
"""


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory, forks: str) -> Path:
    """A copy of a dump, away from where it was made; the program is gone."""
    made = tmp_path_factory.mktemp("made")
    (made / "broken.py").write_text(BROKEN)
    script = Path(sys.executable).with_name("pallas-debug")
    done = subprocess.run(
        [forks, script, "dump", "broken.py"],
        cwd=made,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "3 kernels for v5e in dumps (2 failed)" in done.stderr, done.stderr
    copy = tmp_path_factory.mktemp("copied") / "dumps"
    shutil.copytree(made / "dumps", copy)
    shutil.rmtree(made)
    return copy


@pytest.mark.slow
def test_the_scripts_run_without_pallas_debug(command: Any, dumped: Path, tmp_path: Path) -> None:
    for kernel in REFUSED:
        done = command("reproduce", dumped, "-k", kernel, "-o", f"{kernel}.py")
        assert done.returncode == 0, done.stderr
    alone = subprocess.run(
        [sys.executable, "-I", "-c", ALONE, *(f"{kernel}.py" for kernel in REFUSED)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    parts = alone.stdout.split("exit 1 []\n")
    assert [*map(bool, parts)] == [True] * len(REFUSED) + [False], alone.stderr
    for (stage, message), part in zip(REFUSED.values(), parts, strict=False):
        assert f"{stage} failed\n" in part, alone.stderr
        assert message in part


@pytest.mark.slow
def test_a_kernel_that_compiles(command: Any, dumped: Path) -> None:
    (folder,) = dumped.glob("healthy-*")
    done = command("reproduce", folder / "v5e")
    assert done.returncode == 0, done.stderr
    assert "# It compiled for v5e." in done.stdout
    assert "v2 = lax.add(v1, np.float32(1.0))  # f32[8,128]" in done.stdout


def test_another_target(command: Any, dumped: Path) -> None:
    done = command("reproduce", dumped, "-k", "healthy", "-t", "v6e")
    assert done.returncode == 0, done.stderr
    assert "# It was not compiled for v6e yet." in done.stdout
    assert "TOPOLOGY = 'v6e:2x2'\nDEVICE_KIND, NUM_CORES = 'TPU v6 lite', 1\n" in done.stdout


@pytest.mark.slow
def test_without_a_program_the_module_is_compiled(
    command: Any, dumped: Path, tmp_path: Path
) -> None:
    shutil.copytree(dumped, tmp_path / "dumps")
    for program in (tmp_path / "dumps").glob("*/program.py"):
        program.write_text("# There is no program of this kernel: it has a flux capacitor.\n")
    done = command("reproduce", "dumps", "-k", "refused_by_the_compiler", "-o", "m.py")
    assert done.returncode == 0, done.stderr
    why = "it cannot be written as a program: it has a flux capacitor."
    assert f"pallas-debug: the script compiles the kernel's StableHLO: {why}" in done.stderr
    assert f"# It is embedded as StableHLO: {why}" in (tmp_path / "m.py").read_text()
    shrunk = command("reproduce", "dumps", "-k", "refused_by_the_compiler", "--shrink")
    assert shrunk.returncode == 2
    assert "--shrink is for package.module:function, and 'dumps' is none" in shrunk.stderr
    nothing = command("reproduce", "dumps", "-k", "refused_by_jax")
    assert nothing.returncode == 3
    assert f"cannot be reproduced: {why}" in nothing.stderr
    assert "and the dump has no StableHLO for v5e." in nothing.stderr
    assert "Dump it again with this version of pallas-debug" in nothing.stderr


def test_what_makes_no_sense(commands: Any, dumped: Path, tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "1700000000000000000-0000-mosaic-dump-k-original.txt").write_text("module {\n}\n")
    cases: list[tuple[list[Any], int, str]] = [
        (["raw"], 3, "is a raw libtpu dump: it contains passes, but neither the kernel's jaxpr "
         "nor the module that jax handed to the compiler. Dump it with `pallas-debug dump`"),
        (["nowhere/at/all"], 2, "no such directory: nowhere/at/all"),
        ([dumped], 2, "has several kernels: name one of "),
        ([dumped, "-k", "healthy", "-t", "v99"], 2, "unknown target 'v99'"),
        ([dumped, "-k", "healthy", "-o", "no/such/file.py"], 3,
         "no/such/file.py cannot be written: No such file or directory"),
    ]  # fmt: skip
    results = commands(*(["reproduce", *arguments] for arguments, _, _ in cases))
    for done, (_, code, message) in zip(results, cases, strict=True):
        assert done.returncode == code, done.stderr
        assert message in done.stderr
        assert "Traceback" not in done.stderr
