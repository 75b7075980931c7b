"""LLO passes and schedules in a dump, by the real TPU compiler, for every target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc

import pallas_debug
from pallas_debug.compiler import targets
from pallas_debug.model import Dump
from pallas_debug.store import layout, open_dumps
from pallas_debug.store.profiles import read_profile

ALL = tuple(t.name for t in targets.BUILTIN)
TILE = jax.ShapeDtypeStruct((8, 128), jnp.float32)
STAGES = "estimate,llo:post-ra"


def to_smem(x: jax.Array) -> jax.Array:
    """Copy from VMEM to SMEM, of which libtpu cannot estimate the time on v5e: it aborts."""

    def kernel(x_ref: Any, o_ref: Any, smem_ref: Any, semaphore: Any) -> None:
        o_ref[...] = x_ref[...] * 2
        copy = pltpu.make_async_copy(x_ref, smem_ref, semaphore)
        copy.start()
        copy.wait()

    scratch = [pltpu.SMEM((8, 128), jnp.float32), pltpu.SemaphoreType.DMA]
    call = pl.pallas_call(kernel, out_shape=TILE, scratch_shapes=scratch, name="to_smem")
    result: jax.Array = call(x)
    return result


def dynamic(steps: jax.Array, x: jax.Array) -> jax.Array:
    """As many blocks as asked for at run time."""

    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 2

    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    call = pl.pallas_call(
        kernel, out_shape=x, grid=(steps,), in_specs=[block], out_specs=block, name="dynamic"
    )
    result: jax.Array = call(x)
    return result


def too_large(x: jax.Array) -> jax.Array:
    """Blocks over the limit of VMEM, which is found after the first LLO passes."""

    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 2

    block = pl.BlockSpec((1024, 2048), lambda i: (i, 0))
    call = pl.pallas_call(
        kernel, out_shape=x, grid=(4,), in_specs=[block], out_specs=block, name="too_large"
    )
    result: jax.Array = call(x)
    return result


def sparse(x: jax.Array) -> jax.Array:
    """Copy on the SparseCore."""
    mesh = plsc.VectorSubcoreMesh(core_axis_name="core", subcore_axis_name="tile", num_cores=1)

    def kernel(x_ref: Any, o_ref: Any, scratch_ref: Any) -> None:
        pltpu.sync_copy(x_ref, scratch_ref)
        pltpu.sync_copy(scratch_ref, o_ref)

    scratch = [pltpu.VMEM((128,), jnp.float32)]
    call = pl.kernel(kernel, out_type=jax.typeof(x), mesh=mesh, scratch_types=scratch)
    result: jax.Array = call(x)
    return result


def dump(function: Any, *args: Any, to: Path, **options: Any) -> Dump:
    (dumped,) = pallas_debug.dump(function, *args, to=to, jobs=1, **options)
    return dumped


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stages") / "dumps"


@pytest.fixture(scope="module")
def copied(root: Path) -> Dump:
    return dump(to_smem, TILE, to=root, targets=ALL, stages=STAGES)


@pytest.mark.slow
@pytest.mark.parametrize("target", ALL)
def test_every_target_has_a_schedule(copied: Dump, target: str) -> None:
    compilation = copied.compilation(target)
    assert compilation.failure is None
    assert compilation.stages == ("llo:post-ra", "bundles", "estimate")
    folder = copied.folder / target
    written = {str(p.relative_to(folder)) for p in folder.rglob("*.*") if p.is_file()}
    (llo,) = (name for name in written if name.startswith("llo/"))
    assert layout.llo_pass(llo) == "post-ra"
    assert written >= {*layout.EXPECTED_FILES, llo}
    (kernel,) = open_dumps(copied.folder).kernels()
    stored = kernel.target(target).compilation
    assert stored is not None
    assert stored.missing == compilation.missing
    assert kernel.target(target).damaged() == []
    assert set(stored.files) == written - {layout.COMPILATION}
    bundles = (folder / layout.BUNDLES).read_text()
    assert "dma.vmem_to_smem" in bundles
    assert f'"{__file__}":' in bundles  # its Python lines
    assert "MXU" in (folder / layout.UTILIZATION).read_text()
    assert "tpu_custom_call" in (folder / layout.HLO).read_text()
    assert {m.file for m in compilation.missing} <= {layout.ESTIMATE}
    found = read_profile(kernel, kernel.target(target))
    assert found is not None
    size = 8 * 128 * 4
    assert found.profile.cycles.copied["vmem_to_smem"].value == size
    assert found.profile.traffic.written.value == size


@pytest.mark.slow
def test_where_the_compiler_aborts_it_compiles_without_the_estimate(copied: Dump) -> None:
    (of_v5e,) = copied.compilation("v5e").missing
    flag = "--xla_jf_dump_static_llo_profile_to"
    assert (of_v5e.file, of_v5e.cause, of_v5e.flag) == (layout.ESTIMATE, "aborted", flag)
    assert of_v5e.message.endswith("INVALID_ARGUMENT: Unsupported DMA direction: 10 on VL/VLP")
    assert of_v5e.message.startswith("Static LLO profiling of ")
    (of_v4,) = copied.compilation("v4").missing
    assert "Dma latency model is currently only supported on" in of_v4.message
    estimate = (copied.folder / "v6e" / layout.ESTIMATE).read_text()
    assert "estimated_cycles: " in estimate
    assert copied.compilation("v6e").missing == ()


@pytest.mark.slow
def test_stages_are_added_to_those_of_an_earlier_dump(tmp_path: Path) -> None:
    def again(stages: str) -> tuple[bool, tuple[str, ...], bool]:
        made = dump(to_smem, TILE, to=tmp_path, targets="v6e", stages=stages)
        compilation = made.compilation("v6e")
        bundles = made.folder / "v6e" / layout.BUNDLES
        return compilation.cached, compilation.stages, bundles.exists()

    assert again("mosaic") == (False, (), False)
    assert again("mosaic,llo:post-ra") == (False, ("llo:post-ra",), False)
    assert again("estimate") == (False, ("llo:post-ra", "bundles", "estimate"), True)
    assert again("mosaic") == (True, ("llo:post-ra", "bundles", "estimate"), True)
    assert again("") == (True, ("llo:post-ra", "bundles", "estimate"), True)


@pytest.mark.slow
def test_the_executable_is_the_same(copied: Dump, tmp_path: Path) -> None:
    plain = dump(to_smem, TILE, to=tmp_path, targets="v5e,v6e")
    for target in ("v5e", "v6e"):
        assert plain.compilation(target).memory == copied.compilation(target).memory
        assert plain.compilation(target).key == copied.compilation(target).key


def test_a_dynamic_grid(root: Path) -> None:
    steps = jax.ShapeDtypeStruct((), jnp.int32)
    rows = jax.ShapeDtypeStruct((256, 128), jnp.float32)
    made = dump(dynamic, steps, rows, to=root, targets="v6e", stages=STAGES)
    assert made.compilation("v6e").missing == ()


@pytest.mark.slow
def test_a_kernel_that_fails_in_llo_keeps_what_was_written(root: Path) -> None:
    x = jax.ShapeDtypeStruct((4096, 2048), jnp.float32)
    made = dump(too_large, x, to=root, targets="v5e", stages=STAGES)
    compilation = made.compilation("v5e")
    assert compilation.failure is not None
    assert "vmem" in compilation.failure.message
    assert (made.folder / "v5e" / layout.HLO).exists()
    assert not (made.folder / "v5e" / layout.BUNDLES).exists()
    assert compilation.missing == ()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Destination semaphore is ignored")
def test_a_kernel_of_the_sparse_core(root: Path) -> None:
    x = jax.ShapeDtypeStruct((128,), jnp.float32)
    made = dump(sparse, x, to=root, targets="v6e", stages=STAGES)
    bundles = (made.folder / "v6e" / layout.SPARSECORE).read_text()
    assert bundles.startswith("scs\n")
    assert {m.file for m in made.compilation("v6e").missing} == {
        layout.ESTIMATE,
        "llo/*-post-ra.txt",
    }


def test_a_kernel_that_jax_refuses_is_not_lowered_again(tmp_path: Path) -> None:
    def refused(x: jax.Array) -> Any:
        def kernel(x_ref: Any, o_ref: Any) -> None:
            o_ref[...] = jnp.cumsum(x_ref[...], axis=0)

        return pl.pallas_call(kernel, out_shape=TILE)(x)

    for is_cached in (False, True):
        made = dump(refused, TILE, to=tmp_path, targets="v6e")
        assert made.compilation("v6e").failure is not None
        assert made.compilation("v6e").cached == is_cached
