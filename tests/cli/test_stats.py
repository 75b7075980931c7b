"""`stats` and `source --cost`: numbers of kernels that libtpu compiled, and of damaged dumps."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels import flash_attention
from pallas_debug_kernels.registry import operation

import pallas_debug
from pallas_debug.cli import output
from pallas_debug.cli.exits import Exit
from pallas_debug.errors import CannotRunError, UsageError
from pallas_debug.profile.cycles import ROUNDS
from pallas_debug.profile.stats import Stats
from pallas_debug.profile.text import StatsText, lines_of
from pallas_debug.store import open_dumps
from pallas_debug.store.profiles import read_profile

F32 = jnp.float32
SPEC = operation("flash_attention").spec("bf16_causal")


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stats") / "dumps"
    pallas_debug.dump(flash_attention, *SPEC.args, **SPEC.kwargs, targets="v5e,tpu7x", to=root)
    return root


def stats_of(root: Path, target: str) -> Stats:
    (kernel,) = open_dumps(root).kernels()
    found = read_profile(kernel, kernel.target(target))
    assert found is not None
    return found.profile.stats


@pytest.mark.slow
@pytest.mark.parametrize("target", ["v5e", "tpu7x"])
def test_flash_attention_in_numbers(dumps: Path, target: str) -> None:
    stats = stats_of(dumps, target)
    assert (stats.kernel, stats.target, stats.problems) == ("flash_attention", target, ())
    assert re.fullmatch(
        rf"<Stats flash_attention on {target}: [\d,]+ bundles, [\d,]+ cycles, \d+ spills>",
        repr(stats),
    )
    cycles = stats.cycles
    # 2 batches of 4 blocks of queries and 2 of keys; the causal mask skips one in four.
    assert (cycles.steps.value, cycles.total.origin, cycles.assumptions) == (16, "derived", ())
    assert 0 < cycles.compute.value < cycles.total.value
    assert cycles.compute.value + cycles.waiting.value == pytest.approx(cycles.total.value, abs=2)
    assert cycles.compiler.value is None
    assert cycles.compiler.note == "libtpu wrote no estimate for this kernel"
    # The outer loop runs once per step, and once more for each end of the pipeline.
    assert stats.loops[0].executed.value > 16 * 50
    assert [unit.name for unit in stats.units][:3] == ["MXU", "XLU", "VALU"]
    assert all(0 < unit.share.value <= 1 for unit in stats.units if unit.name in ("MXU", "VALU"))
    assert sum(cost.own_share for cost in stats.lines) <= 1
    lines = {cost.source.function for cost in stats.lines[:8]}
    assert "dot" in lines
    assert any("flash_attention_kernel" in str(name) for name in lines)


def test_products_count_as_often_as_they_run(dumps: Path) -> None:
    traffic = stats_of(dumps, "v5e").traffic
    # Of 16 steps with two products of 64 x 128 x 128, those above the diagonal are skipped.
    assert traffic.flops.value == 12 * 2 * 2 * 64 * 128 * 128
    assert traffic.written.value == 2 * 256 * 128 * 2
    assert traffic.read_per_step.value == traffic.read.value / 16
    assert traffic.bound in ("memory", "compute", "latency")
    assert traffic.source == "https://docs.cloud.google.com/tpu/docs/v5e"


def test_the_command(command: Any, dumps: Path) -> None:
    done = command("stats", dumps, "-t", "v5e", "--all", "--provenance")
    assert done.returncode == 0, done.stderr
    for pattern in (
        r"flash_attention on v5e: [\d,]+ d cycles, bound by ",
        r"  bundles +[\d,]+ c, \d+ c of them empty",
        r"  cycles +[\d,]+ d: [\d,]+ d computing, [\d,]+ d waiting for copies",
        r"    libtpu +-$",
        r"  grid steps +16 d",
        r"  MXU +4 +[\d.]+ % d  matrix units that are busy",
        r"  0x[0-9a-f]+ +[\d,]+ +[\d,]+ d +[\d.]+ % d +\d+ +\d+",
        r"memory +VMEM [\d,]+ c of the 16,777,216 a bytes that it may use, SMEM 0 d",
        r" +vmem_limit_bytes can raise that limit to 134,217,728 c bytes",
        r"  q_ref +32,768 c bytes of vmem in 2 buffers",
        r"  kernel.py:\d+ \w+",
    ):
        assert re.search(f"^{pattern}", done.stdout, re.MULTILINE), (pattern, done.stdout)
    document = json.loads(command("stats", dumps, "-t", "v5e", "--json").stdout)
    assert document["schema"] == "pallas-debug/stats/1"
    (stats,) = document["stats"]
    assert stats["bundles"]["origin"] == "compiler"


def test_the_first_screen(command: Any, dumps: Path) -> None:
    """Cycles, what they are spent on, the hottest lines with their text, and what saves some."""
    done = command("stats", dumps, "-t", "v5e")
    lines = done.stdout.splitlines()
    assert len(lines) <= 15
    assert re.match(r"flash_attention on v5e: [\d,]+ cycles, bound by \w+, \d+ spills$", lines[0])
    (issuing,) = [line for line in lines if line.startswith("  issuing ")]
    assert re.match(r"  issuing +(\d+) % █+ +\w+.* \d+ %", issuing)
    shares = [int(found) for found in re.findall(r"^  [a-z ]+ +(\d+) %", done.stdout, re.M)]
    assert sum(shares) == pytest.approx(100, abs=2)
    assert shares == sorted(shares, reverse=True)
    assert re.search(
        r"^  kernel.py:\d+ +\d+ %  (issuing|waiting for results of) .*=", done.stdout, re.M
    )
    assert re.search(r"^  [\d.]+k → [\d.]+k cycles: use larger blocks: .*\[", done.stdout, re.M)
    assert not re.search(r"\d [cda]\b", done.stdout)
    assert re.search(
        r"^next: pallas-debug source --cost \S+/flash_attention-\w+ -t v5e$", done.stderr, re.M
    )


def test_several_targets_have_a_line_each(command: Any, dumps: Path) -> None:
    done = command("stats", dumps)
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[1] for row in rows] == ["v5e", "tpu7x"]
    for name, target, cycles, mostly, spills, line in rows:
        assert name.startswith("flash_attention-")
        assert cycles == str(stats_of(dumps, target).cycles.total)
        assert spills == str(stats_of(dumps, target).spills)
        assert re.fullmatch(r"(issuing|waiting for (results|copies)) \d+ %", mostly)
        assert re.fullmatch(r"kernel.py:\d+ \d+ % .+", line)
    document = json.loads(command("stats", dumps, "--json").stdout)
    assert [stats["target"] for stats in document["stats"]] == ["v5e", "tpu7x"]
    refused = command("stats", dumps, "--what-if", "k_ref[2]=256")
    assert refused.returncode == 2
    assert "--what-if changes one kernel on one target; there are " in refused.stderr


@pytest.mark.slow
def test_source_with_costs(command: Any, dumps: Path) -> None:
    done = command("source", dumps, "-t", "v5e", "--cost")
    assert done.returncode == 0, done.stderr
    waits = r"[\d,]+ cycles, of which [\d,]+ wait for copies; "
    assert re.search(waits + "share of each line in the cycles$", done.stdout, re.M)
    (line,) = [text for text in done.stdout.splitlines() if "p = jnp.exp2(" in text]
    assert re.match(r" +[\d.]+% +[\d.]+% +\d+ ", line)
    own = sum(float(share) for share in re.findall(r"^ +[\d.]+% +([\d.]+)%", done.stdout, re.M))
    rest = re.search(r"^([\d.]+)% of the cycles belong to no line", done.stdout, re.M)
    assert rest is not None
    assert own + float(rest[1]) == pytest.approx(100, abs=1)
    shown = command("source", dumps, "-t", "v5e", "--cost", "--json").stdout
    (document,) = json.loads(shown)["sources"]
    assert (document["stage"], bool(document["costs"])) == ("bundles", True)
    both = command("source", dumps, "--cost").stdout.splitlines()
    assert [line.split()[1] for line in both] == ["v5e", "tpu7x"]


@pytest.mark.slow
def test_what_cannot_be_asked_for(command: Any, dumps: Path, tmp_path: Path) -> None:
    done = command("source", dumps, "-t", "v5e", "--cost", "--pass", "mosaic")
    assert done.returncode == Exit.USAGE
    assert "--cost is about the final schedule: omit --pass" in done.stderr
    script = tmp_path / "script.py"
    script.write_text("print()\n")
    done = command("stats", script)
    assert "stats does not run" in done.stderr
    assert "Dump its kernels first: pallas-debug dump " in done.stderr
    plain = tmp_path / "plain"
    pallas_debug.dump(add, X, targets="v5e", to=plain, stages="mosaic")
    done = command("stats", plain)
    assert "has no schedule for v5e: it was dumped without" in done.stderr


@pytest.mark.slow
def test_a_truncated_schedule_is_reported(command: Any, dumps: Path, tmp_path: Path) -> None:
    raw = stats_of(dumps, "v5e")
    (kernel,) = open_dumps(dumps).kernels()
    stored = read_profile(kernel, kernel.target("v5e"))
    assert stored is not None
    from dataclasses import replace

    texts = stored.profile.texts
    assert texts.bundles is not None
    assert texts.utilization is not None
    within = texts.bundles.index("{", len(texts.bundles) // 2) + 1  # a bundle begins there
    cut = replace(texts, bundles=texts.bundles[:within])
    stats = replace(stored.profile, texts=cut).stats
    assert 0 < stats.bundles.value < raw.bundles.value
    assert stats.problems[0].startswith("the listing of bundles is cut off after bundle 0x")
    assert "rows for" in stats.problems[1]
    shutil.copytree(dumps, tmp_path / "cut")
    folder = tmp_path / "cut" / kernel.name
    listing = folder / "v5e" / "schedule" / "bundles.txt"
    listing.write_text(cut.bundles or "")
    for words in (["stats"], ["timeline"], ["source", "--cost"], ["stats", "--json"]):
        done = command(words[0], folder, "-t", "v5e", *words[1:])
        assert done.returncode == Exit.CANNOT_RUN, words
        assert "bundles.txt is damaged: it has" in done.stderr
    done = command("source", folder, "-t", "v5e", "--cost")
    assert f"the bundles of {kernel.name} for v5e cannot be read; see above" in done.stderr
    assert done.stdout == ""
    none = replace(texts, bundles=None)
    nothing = replace(stored.profile, texts=none, compilation=None).stats
    assert (nothing.bundles.value, nothing.cycles.total.value) == (None, None)
    assert nothing.bundles.note == "there is no listing of bundles"
    assert nothing.problems[0] == "there is no readable listing of bundles"


X = jax.ShapeDtypeStruct((64, 128), F32)


def add(x: jax.Array) -> jax.Array:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + 1.0

    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((64, 128), F32))(x)


def repeated(n: jax.Array, x: jax.Array) -> jax.Array:
    """A kernel with a loop whose length it reads, and without a grid."""

    def kernel(n_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jax.lax.fori_loop(0, n_ref[0], lambda i, c: c * 1.5 + 1.0, x_ref[...])

    return pl.pallas_call(
        kernel,
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pltpu.VMEM)],
        out_shape=jax.ShapeDtypeStruct((64, 128), F32),
    )(n, x)


@pytest.mark.slow
def test_a_kernel_without_a_loop_and_libtpus_estimate() -> None:
    stats = pallas_debug.stats(add, X)
    assert (stats.loops, stats.cycles.steps.value) == ((), 1)
    assert stats.cycles.compiler.value == pytest.approx(stats.cycles.total.value, rel=0.05)
    assert stats.traffic.flops.value == 0
    assert stats.traffic.vector_operations.value == 64 * 128
    texts = [line.source.text for line in stats.lines]
    assert all(texts)
    assert f"<code>{texts[0]}</code>" in stats._repr_html_()


def heads(x: jax.Array) -> jax.Array:
    """A kernel whose blocks of the output are strided along two dimensions."""

    def kernel(x_ref: Any, o_ref: Any) -> None:
        for head in range(4):
            o_ref[head] = x_ref[:, head * 128 : (head + 1) * 128] * 2.0

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((4, 64, 128), F32),
        grid=(4,),
        in_specs=[pl.BlockSpec((16, 512), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((4, 16, 128), lambda i: (0, i, 0)),
    )(x)


@pytest.mark.slow
def test_blocks_that_are_strided_several_times_are_copied() -> None:
    size = 64 * 512 * 4
    stats = pallas_debug.stats(heads, jax.ShapeDtypeStruct((64, 512), F32))
    assert (stats.traffic.read.value, stats.traffic.written.value) == (size, size)
    assert stats.cycles.compiler.value is None  # libtpu writes 0


def test_a_loop_over_data_is_a_formula() -> None:
    n = jax.ShapeDtypeStruct((4,), jnp.int32)
    stats = pallas_debug.stats(repeated, n, X, target="v6e", estimate=False)
    assert stats.cycles.total.value is None
    assert re.fullmatch(r"[\d,]+ \+ [\d,]+ n", str(stats.cycles.total))
    assert "known only at run time" in stats.cycles.total.note
    assert ROUNDS in stats.cycles.assumptions
    (of_loop,) = stats.loops
    assert (of_loop.executed.value, of_loop.share.origin) == (None, "assumed")
    assert {unit.share.origin for unit in stats.units} == {"assumed"}
    least = next(line for line in lines_of(stats) if line.startswith("    at least "))
    assert re.fullmatch(r" +at least +[\d,]+, if no region that depends on data runs", least)
    assert 0 < stats.cycles.least.value < 5_000
    assert stats.traffic.flops.value is None
    smem = stats.memory.of_operand("n_ref")
    assert smem is not None
    assert (smem.space, smem.size.value) == ("smem", 16)


def test_which_kernel() -> None:
    def both(x: jax.Array) -> jax.Array:
        return add(add(x) @ jnp.ones((128, 128)))

    with pytest.raises(UsageError, match="a single target, but 'v5e,v6e' lists several"):
        pallas_debug.stats(add, X, target="v5e,v6e")
    with pytest.raises(UsageError, match="calls the kernels kernel: but not 'other'"):
        pallas_debug.stats(add, X, kernel="other", estimate=False)

    def huge(x: jax.Array) -> jax.Array:
        def kernel(x_ref: Any, o_ref: Any, scratch: Any) -> None:
            o_ref[...] = x_ref[...] + scratch[0]

        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct((64, 128), F32),
            scratch_shapes=[pltpu.VMEM((1 << 14, 64, 128), F32)],
        )(x)

    with pytest.raises(CannotRunError, match="does not compile for v5e: "):
        pallas_debug.stats(huge, X, estimate=False)


def test_a_long_file_name_keeps_its_line_number(dumps: Path) -> None:
    stats = stats_of(dumps, "tpu7x")
    line = stats.lines[0]
    source = replace(line.source, file=f"a_{'long_' * 8}name.py", line=7412)
    shown = list(lines_of(replace(stats, lines=(replace(line, source=source),))))
    assert any(text.startswith("  …g_long_long_long_name.py:7412  ") for text in shown)


@pytest.mark.parametrize("width", [80, 120])
def test_lines_fit_the_terminal(dumps: Path, width: int, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(output, "terminal_width", lambda: width)
    for lines, indent in StatsText(stats_of(dumps, "tpu7x")).sections(whole=True):
        for line in lines:
            output.echo_wrapped(line, indent)
    printed = capsys.readouterr().out.splitlines()
    assert max(map(len, printed)) <= width
    assert " ".join(" ".join(printed).split()) == " ".join(
        " ".join(lines_of(stats_of(dumps, "tpu7x"))).split()
    )


@pytest.mark.slow
def test_a_kernel_that_did_not_compile_has_no_figures(command: Any, tmp_path: Path) -> None:
    def split(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.concatenate([x_ref[:, ::2], x_ref[:, 1::2]], axis=1)

    x = jax.ShapeDtypeStruct((128, 128), F32)
    (dump,) = pallas_debug.dump(
        lambda x: pl.pallas_call(split, out_shape=x)(x),
        x,
        targets="v5e",
        to=tmp_path,
    )
    assert not dump.ok
    for call in (["stats"], ["source", "--cost"], ["timeline"]):
        done = command(*call, tmp_path, "-t", "v5e")
        assert (done.returncode, done.stdout) == (Exit.CANNOT_RUN, ""), done
        assert "did not compile for v5e, so there is no schedule. For the error: " in done.stderr


@pytest.mark.slow
def test_a_kernel_on_the_sparse_core_has_no_figures_of_the_tensor_core(
    dumps: Path, tmp_path: Path, command: Any
) -> None:
    shutil.copytree(dumps, tmp_path / "sparse")
    (folder,) = (tmp_path / "sparse").glob("flash_attention-*/v5e")
    for file in (folder / "schedule").iterdir():
        file.unlink()
    (folder / "schedule" / "sparsecore.txt").write_text("scs\n0x0: {  \t(pc) =\tsbr.rel $0x88  }\n")
    stats = stats_of(tmp_path / "sparse", "v5e")
    assert stats.is_sparse
    assert stats.memory.limit.value is None
    assert stats.traffic.roofline.value is None
    printed = "\n".join(lines_of(stats))
    assert "problem: the kernel runs on the SparseCore" in printed
    assert "may use" not in printed
    assert "published peaks" not in printed

    for words, kind in (
        (("source", "--cost"), "have no known cost; see above"),
        (("timeline",), "has no timeline, because it runs on the SparseCore"),
    ):
        done = command(*words, "sparse", "-t", "v5e")
        assert done.returncode == Exit.CANNOT_RUN
        assert kind in done.stderr
        assert "it was dumped without" not in done.stderr
    done = command("diff", "--stats", str(dumps), "sparse", "-t", "v5e")
    assert done.returncode == Exit.CANNOT_RUN
    assert "is not compared: the kernel runs on the SparseCore" in done.stderr
    assert "nothing changed" not in done.stdout


@pytest.mark.slow
def test_a_parameter_of_a_function_can_be_changed(command: Any) -> None:
    words = ("stats", "pallas_debug_kernels:flash_attention", "-t", "v5e", "--spec", "bf16_4k")
    done = command(*words, "--what-if", "block_k=1024", "--what-if", "k_ref.buffers=3")
    assert done.returncode == 0, done.stderr
    changed = r"^  [\d.]+k → [\d.]+k cycles with block_k=1024, k_ref.buffers=3: \d+ steps, "
    assert re.search(changed, done.stdout, re.M)
    assert len(done.stdout.splitlines()) <= 15
    refused = command(*words, "--what-if", "blok_k=1024")
    assert refused.returncode == 2
    assert "'blok_k=1024' is no change; there are k_ref[2]=512" in refused.stderr
