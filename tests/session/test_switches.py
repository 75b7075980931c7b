"""Switches end to end: their effect on a dump, and messages about a kernel's prints."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import pallas_debug
from pallas_debug import render
from pallas_debug.bridge import versions
from pallas_debug.compiler import switches
from pallas_debug.model import Dump
from pallas_debug.store import open_dumps

X = jax.ShapeDtypeStruct((8, 128), jnp.float32)
LIBTPU = tuple(int(part) for part in versions.installed()["libtpu"].split(".")[:3])
UNSEEN = "it prints, but a TPU shows no output: it was compiled without the switch log_recorder"


def talking_kernel(x_ref: Any, o_ref: Any) -> None:
    pl.debug_print("row {}", pl.program_id(0))
    pl.debug_check(x_ref[0, 0] >= 0, "negative")

    def body(buffer: Any) -> None:
        o_ref[...] = buffer[...] + x_ref[...]

    pl.run_scoped(body, pltpu.VMEM((8, 128), jnp.float32))


def talking(x: Any) -> Any:
    return pl.pallas_call(talking_kernel, out_shape=X, grid=(1,), name="talking")(x)


def copying_kernel(start_ref: Any, x_ref: Any, o_ref: Any, sem: Any) -> None:
    copy = pltpu.make_async_copy(x_ref.at[pl.ds(start_ref[0] * 8, 8), :], o_ref, sem)
    copy.start()
    copy.wait()


def copying(start: Any, x: Any) -> Any:
    return pl.pallas_call(
        copying_kernel,
        out_shape=X,
        in_specs=[
            pl.BlockSpec(memory_space=pltpu.SMEM),
            pl.BlockSpec(memory_space=pl.ANY),
        ],
        scratch_shapes=[pltpu.SemaphoreType.DMA],
        name="copying",
    )(start, x)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Dump:
    (dump,) = pallas_debug.dump(talking, X, to=tmp_path_factory.mktemp("plain"))
    return dump


def code(dump: Dump) -> int:
    memory = dump.compilations[0].memory
    assert memory is not None
    return memory.generated_code


@pytest.mark.slow
def test_the_recorder_is_in_and_the_dump_says_so(plain: Dump, tmp_path: Path) -> None:
    (dump,) = pallas_debug.dump(talking, X, to=tmp_path, switches="log_recorder")
    compilation = dump.compilation("v5e")
    assert compilation.switches == ("log_recorder",)
    assert compilation.notes == ()
    assert code(dump) > code(plain) + 1_000_000
    document = json.loads((dump.folder / "v5e" / "compilation.json").read_text())
    assert document["switches"] == ["log_recorder"]
    stored = open_dumps(tmp_path).find(dump.name).target("v5e").compilation
    assert stored is not None
    assert "compiler.log" in stored.files
    assert replace(stored, files={}) == compilation


@pytest.mark.slow
def test_a_kernel_that_prints_without_the_recorder_is_named_once(plain: Dump) -> None:
    assert plain.compilation("v5e").switches == ()
    assert plain.compilation("v5e").notes == (UNSEEN,)
    for_two = Dump(kernel=plain.kernel, folder=plain.folder, compilations=plain.compilations * 2)
    lines = render.summary([for_two], None)
    assert lines == [f"{plain.name}: {UNSEEN}", "1 kernel for v5e"]


def test_a_kernel_that_does_not_print_is_not_named(tmp_path: Path) -> None:
    start = jax.ShapeDtypeStruct((1,), jnp.int32)
    x = jax.ShapeDtypeStruct((256, 128), jnp.float32)
    (dump,) = pallas_debug.dump(copying, start, x, to=tmp_path)
    (checked,) = pallas_debug.dump(copying, start, x, to=tmp_path, switches=["bounds_checks"])
    assert dump.compilation("v5e").notes == checked.compilation("v5e").notes == ()
    assert code(checked) > code(dump)
    (inserted,) = (checked.folder / "v5e" / "passes").glob("*-assert-insertion.mlir")
    assert "references out-of-bounds elements in dimension 0" in inserted.read_text()
    assert "assert-insertion" not in [p.name for p in dump.compilation("v5e").changed_passes]


@pytest.mark.slow
def test_assertions_become_assertions_of_the_kernels_module(plain: Dump, tmp_path: Path) -> None:
    (dump,) = pallas_debug.dump(talking, X, to=tmp_path, switches="assertions")
    assert "cf.assert" not in (plain.folder / "v5e" / "mosaic.mlir").read_text()
    text = (dump.folder / "v5e" / "mosaic.mlir").read_text()
    assert text.count("cf.assert") == 1
    assert '"negative"' in text
    assert dump.compilation("v5e").ok


def test_poisoned_buffers_begin_as_nan(plain: Dump, tmp_path: Path) -> None:
    (dump,) = pallas_debug.dump(talking, X, to=tmp_path, switches="poison_buffers")
    assert "0x7FC00000" not in (plain.folder / "v5e" / "mosaic.mlir").read_text()
    assert "0x7FC00000" in (dump.folder / "v5e" / "mosaic.mlir").read_text()


def test_all_at_once_and_the_settings_of_jax_are_left_as_they_were(
    plain: Dump, tmp_path: Path
) -> None:
    (dump,) = pallas_debug.dump(talking, X, to=tmp_path, switches=list(switches.SWITCHES))
    assert dump.compilation("v5e").switches == tuple(switches.SWITCHES)
    assert code(dump) > code(plain) + 1_000_000
    assert not jax.config.jax_pallas_enable_debug_checks
    assert not jax.config.jax_pallas_poison_buffers


@pytest.mark.slow
def test_each_choice_is_compiled_and_then_kept(tmp_path: Path) -> None:
    def dump(**kwargs: Any) -> tuple[bool, tuple[str, ...]]:
        (dumped,) = pallas_debug.dump(talking, X, to=tmp_path, **kwargs)
        return dumped.compilation("v5e").cached, dumped.compilation("v5e").switches

    assert dump() == (False, ())
    assert dump() == (True, ())
    assert dump(switches="assertions") == (False, ("assertions",))
    assert dump(switches=("assertions",)) == (True, ("assertions",))
    assert dump(switches="poison_buffers,assertions") == (False, ("poison_buffers", "assertions"))


@pytest.mark.parametrize(
    "option,where,who",
    [("xla_no_such_option", "compile", "libtpu"), ("jax_no_such_setting", "lowering", "jax")],
)
def test_one_that_is_refused_is_a_failure_that_names_it(
    option: str, where: str, who: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = switches.SWITCHES["poison_vmem"]
    other = type(real)(**{**vars(real), "option": option, "where": where})
    monkeypatch.setattr(switches, "SWITCHES", {**switches.SWITCHES, "poison_vmem": other})
    (dump,) = pallas_debug.dump(talking, X, to=tmp_path, switches="poison_vmem")
    failure = dump.compilation("v5e").failure
    assert failure is not None
    assert failure.type == "SwitchRefused"
    assert failure.stage == where
    assert failure.headline == (
        f"the switch 'poison_vmem' is not supported: {who} {versions.installed()[who]} does not "
        f"know {option}. Remove the switch, or use another {who}."
    )
    assert dump.compilation("v5e").switches == ("poison_vmem",)
