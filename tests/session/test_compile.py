"""From a captured kernel to its compilation by the real TPU compiler, for every target."""

from __future__ import annotations

import linecache
import re
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec as P
from pallas_debug_kernels import flash_attention, vector_add

import pallas_debug
from pallas_debug.bridge import versions
from pallas_debug.compiler import targets
from pallas_debug.errors import CannotRunError, UsageError
from pallas_debug.model import Compilation, Dump, Kernel
from pallas_debug.session import Options, Session, Subscriber
from pallas_debug.store import open_dumps

ALL = tuple(t.name for t in targets.BUILTIN)
VECTOR = jax.ShapeDtypeStruct((1024,), jnp.float32)
QUERY = jax.ShapeDtypeStruct((1, 2, 256, 128), jnp.bfloat16)

LIBTPU = tuple(int(part) for part in versions.installed()["libtpu"].split(".")[:3])
PASSES = 20 if LIBTPU >= (0, 0, 50) else 19
"""libtpu 0.0.42 has three passes fewer to begin with: 19 in all."""


@pytest.fixture(scope="module")
def flash(tmp_path_factory: pytest.TempPathFactory) -> Dump:
    (dump,) = pallas_debug.dump(
        flash_attention, QUERY, QUERY, QUERY, causal=True, block_q=128, block_k=128,
        targets=ALL, to=tmp_path_factory.mktemp("flash") / "dumps",
    )  # fmt: skip
    return dump


@pytest.mark.slow
@pytest.mark.parametrize("target", ALL)
def test_flash_attention_compiles_for_every_target(flash: Dump, target: str) -> None:
    compilation = flash.compilation(target)
    assert compilation.failure is None
    assert len(compilation.passes) >= PASSES
    assert compilation.passes[-1].name == "finalize-llo"
    assert [p.number for p in compilation.passes] == list(range(len(compilation.passes)))
    assert 5 < len(compilation.changed_passes) < len(compilation.passes)
    assert compilation.device_kind == targets.resolve(target).device_kind
    assert compilation.memory is not None
    assert compilation.memory.generated_code > 1000
    assert compilation.versions["libtpu"] == versions.installed()["libtpu"]


@pytest.mark.parametrize("target", ALL)
def test_every_pass_has_locations_and_the_last_is_in_llo(flash: Dump, target: str) -> None:
    assert flash.kernel.source is not None
    stored = open_dumps(flash.folder).find(flash.name).target(target)
    assert stored.compilation is not None
    for one in stored.compilation.passes:
        assert flash.kernel.source.file in stored.text(one), one.name
    assert "llo." in stored.text(stored.compilation.passes[-1])
    assert "llo." not in stored.text(stored.compilation.passes[0])


@pytest.mark.parametrize("target", ALL)
def test_the_lines_of_the_mosaic_module_are_the_kernels(flash: Dump, target: str) -> None:
    assert flash.kernel.source is not None
    text = (flash.folder / target / "mosaic.mlir").read_text()
    lines = [int(line) for line in re.findall(rf'"{flash.kernel.source.file}":(\d+)', text)]
    source = Path(flash.kernel.source.file).read_text().splitlines()
    assert len(set(lines)) > 10
    assert any("dot_general" in source[line - 1] or "dot(" in source[line - 1] for line in lines)
    assert flash.kernel.source.line < max(lines) <= len(source)


def test_all_that_libtpu_says_is_in_the_log(flash: Dump, capfd: pytest.CaptureFixture[str]) -> None:
    logs = [(flash.folder / target / "compiler.log").read_text() for target in ALL]
    assert any("TPU_ACCELERATOR_TYPE" in log for log in logs)  # said once, as libtpu is loaded
    pallas_debug.dump(vector_add, VECTOR, VECTOR, to=flash.folder.parent)
    printed = capfd.readouterr()
    assert printed.out == printed.err == ""


def cumsum_kernel(x_ref: Any, o_ref: Any) -> None:
    x = x_ref[...]
    o_ref[...] = jnp.cumsum(x, axis=0)


def test_a_kernel_that_fails_does_not_hide_the_next(tmp_path: Path) -> None:
    def both(x: jax.Array) -> jax.Array:
        y = pl.pallas_call(cumsum_kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)
        return vector_add(y.reshape(-1), y.reshape(-1))

    dumps = pallas_debug.dump(both, jax.ShapeDtypeStruct((8, 128), jnp.float32), to=tmp_path)
    assert [d.ok for d in dumps] == [False, True]


def remote_copy_kernel(x_ref: Any, o_ref: Any, send_sem: Any, recv_sem: Any) -> None:
    me, n = jax.lax.axis_index("x"), jax.lax.axis_size("x")
    copy = pltpu.make_async_remote_copy(
        x_ref, o_ref, send_sem, recv_sem, device_id=(jax.lax.rem(me + 1, n),)
    )
    copy.start()
    copy.wait()


def permuted(x: jax.Array) -> jax.Array:
    return pl.pallas_call(
        remote_copy_kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        scratch_shapes=[pltpu.SemaphoreType.DMA] * 2,
    )(x)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["v5e", "v6e", "v4", "v5e:2x4"])
def test_a_kernel_under_shard_map_is_compiled_for_its_mesh(tmp_path: Path, target: str) -> None:
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    sharded = jax.shard_map(permuted, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    with Session(Options(dumps=tmp_path, targets=(target,), interpret="tpu")) as session:
        out = jax.jit(sharded)(jnp.arange(32 * 128, dtype=jnp.float32).reshape(32, 128))
    assert out[8, 0] == 0.0  # the first device's rows are the second's now
    (dump,) = session.dumps
    compilation = dump.compilation(target)
    assert compilation.failure is None
    assert compilation.num_devices == 4


def rank_one_kernel(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] + 1


def test_a_chip_is_there_while_lowering_too(tmp_path: Path) -> None:
    x = jax.ShapeDtypeStruct((4096,), jnp.float32)
    spec = pl.BlockSpec((1024,), lambda i: (i,))
    call = pl.pallas_call(rank_one_kernel, out_shape=x, grid=(4,), in_specs=[spec], out_specs=spec)
    (dump,) = pallas_debug.dump(call, x, to=tmp_path, targets="v5e,v6e")
    assert dump.ok


def test_x64_is_that_of_the_program(tmp_path: Path) -> None:
    with jax.enable_x64(True):
        (dump,) = pallas_debug.dump(vector_add, VECTOR, VECTOR, to=tmp_path)
    assert dump.ok


def test_the_hosts_own_tpu_is_refused_where_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(CannotRunError) as error:
        pallas_debug.dump(vector_add, VECTOR, VECTOR, targets="tpu", to=tmp_path)
    assert "the target `tpu` is the TPU of this host, and jax's device here is 'cpu'." in str(
        error.value
    )
    assert "Name a generation instead, such as v5e." in str(error.value)


def test_the_hosts_own_tpu_is_compiled_for_like_its_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device's answer is a stand-in: there is no TPU here. The compiler is the real one."""
    from pallas_debug.bridge import platform

    monkeypatch.setattr(platform, "device_kind", lambda: "TPU v6 lite")
    (dump,) = pallas_debug.dump(vector_add, VECTOR, VECTOR, targets="tpu", to=tmp_path)
    assert dump.compilation("tpu").ok
    assert dump.compilation("tpu").device_kind == "TPU v6 lite"
    assert (dump.folder / "tpu" / "passes").is_dir()


def test_a_function_without_kernels_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        pallas_debug.dump(jnp.sin, VECTOR, to=tmp_path)
    assert "sin calls no Pallas kernel with these arguments: nothing to dump." in str(error.value)
    assert "Does it call one only with other arguments, or only on a TPU (--pretend)?" in str(
        error.value
    )


def test_a_compilation_that_was_stopped_is_tried_again(tmp_path: Path) -> None:
    (stopped,) = pallas_debug.dump(vector_add, VECTOR, VECTOR, to=tmp_path, timeout=0.01)
    failure = stopped.compilation("v5e").failure
    assert failure is not None
    assert failure.stage == "timeout"
    (again,) = pallas_debug.dump(vector_add, VECTOR, VECTOR, to=tmp_path)
    assert again.ok
    assert not again.compilation("v5e").cached


MODULE = """
import jax
from jax.experimental import pallas as pl

def kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...]

def copied(x):
    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)
"""


@pytest.mark.slow
@pytest.mark.parametrize("change", ["flags", "lines"])
def test_what_makes_another_compilation_of_the_same_kernel(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "copied.py"

    def dump(source: str) -> Compilation:
        file.write_text(source)
        linecache.checkcache()
        module: dict[str, Any] = {}
        exec(compile(source, file, "exec"), module)
        x = jax.ShapeDtypeStruct((8, 128), jnp.float32)
        (dump,) = pallas_debug.dump(module["copied"], x, to=tmp_path / "dumps")
        return dump.compilation("v5e")

    first = dump(MODULE)
    if change == "flags":
        monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_scoped_vmem_limit_kib=8192")
        again = dump(MODULE)
        assert "--xla_tpu_scoped_vmem_limit_kib=8192" in again.flags
    else:
        again = dump("\n\n" + MODULE)
    assert not again.cached
    assert again.key != first.key
    (stored,) = open_dumps(tmp_path / "dumps").kernels()
    assert stored.kernel is not None
    assert stored.kernel.source is not None
    assert stored.kernel.source.line == (5 if change == "flags" else 7)
    assert dump(MODULE if change == "flags" else "\n\n" + MODULE).cached


def test_without_libtpu_kernels_are_captured_and_the_lack_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libtpu's absence is a stand-in: it is installed here."""
    from pallas_debug.compiler import pool

    monkeypatch.setattr(pool.importlib.util, "find_spec", lambda _: None)
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)  # jax sets it where it finds libtpu
    with Session(Options(dumps=tmp_path, targets=("v5e",))) as session:
        assert vector_add(jnp.ones(1024), jnp.ones(1024))[0] == 2
    (problem,) = session.problems
    assert "libtpu is not installed, so nothing can be compiled for a TPU." in str(problem)
    assert "Install it with: pip install 'pallas-debug[tpu]'" in str(problem)
    (stored,) = open_dumps(tmp_path).kernels()
    assert stored.kernel is not None
    assert stored.compilations == ()


def test_leaving_by_ctrl_c_stops_at_once_and_leaves_nothing_running(tmp_path: Path) -> None:
    pids: list[int] = []

    def stopped() -> None:
        with Session(Options(dumps=tmp_path, targets=ALL, jobs=1)) as session:
            jax.jit(vector_add).lower(VECTOR, VECTOR)
            while not pids:  # a process may be replaced between two looks
                time.sleep(0.005)
                pids[:] = session.queue._pool.pids(at_work=True)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert pids
    assert not any(Path("/proc", str(pid)).exists() for pid in pids)
    assert open_dumps(tmp_path).kernels()[0].kernel is not None


@pytest.mark.slow
def test_subscribers_hear_of_every_kernel_even_if_another_one_raises(tmp_path: Path) -> None:
    heard: list[tuple[str, str]] = []

    class Bad(Subscriber):
        def kernel_captured(self, kernel: Kernel) -> None:
            raise RuntimeError(f"no {kernel.name} for me")

    class Listener(Subscriber):
        def kernel_captured(self, kernel: Kernel) -> None:
            heard.append(("captured", kernel.name))

        def kernel_used(self, kernel: Kernel) -> None:
            heard.append(("used", kernel.name))

    with Session(Options(dumps=tmp_path, targets=("v5e",)), Bad(), Listener()) as session:
        vector_add(jnp.ones(1024), jnp.ones(1024))
    assert heard == [("captured", "vector_add"), ("used", "vector_add")]
    assert session.dumps[0].compilation("v5e").ok
    assert open_dumps(str(tmp_path)).kernels()[0].kernel is not None
    (problem,) = session.problems
    assert "notifying Bad of an event" in str(problem)
    assert "no vector_add for me" in str(problem)


@pytest.mark.parametrize("name", ["a" * 5000, "a/../b\x1b[2J", "ü" * 300])
def test_a_kernel_of_any_name_is_dumped(tmp_path: Path, name: str) -> None:
    x = jax.ShapeDtypeStruct((8, 128), jnp.float32)
    call = pl.pallas_call(rank_one_kernel, out_shape=x, name=name)
    (dump,) = pallas_debug.dump(call, x, to=tmp_path)
    compilation = dump.compilation("v5e")
    assert compilation.failure is None
    assert len(compilation.passes) >= 19
    assert dump.folder.parent == tmp_path
    assert "\x1b" not in dump.folder.name
    assert open_dumps(tmp_path).kernels()[0].kernel == dump.kernel
