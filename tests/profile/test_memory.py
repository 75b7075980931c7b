"""Memory by operand, from libtpu's map of VMEM and from shapes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pallas_debug.model import Compilation, Kernel, Operand
from pallas_debug.profile.memory import memory_map


def operand(name: str, kind: str, shape: tuple[int, ...], **fields: object) -> Operand:
    plain = {"dtype": "float32", "memory_space": "vmem"}
    return Operand(name=name, kind=kind, shape=shape, **(plain | fields))  # type: ignore[arg-type]


KERNEL = Kernel(
    name="k",
    digest="0" * 64,
    primitive="pallas_call",
    operands=(
        operand("lengths", "scalar_prefetch", (6,), dtype="int16", memory_space="smem"),
        operand("x", "input", (64, 128), block_shape=(8, 128)),
        operand("table", "input", (64, 4), block_shape=(8, 4), memory_space="smem"),
        operand("o", "output", (64, 128), block_shape=(8, 128)),
        operand("acc", "scratch", (8, 128)),
    ),
)


def page(*allocations: dict[str, object], total: object = 20_480) -> str:
    blocks = [{"allocations": list(allocations), "block_type": "SCOPED"}]
    data = {
        "global_info": {"vmem_capacity": 1 << 27},
        "hlo_breakdowns": {
            "<top-inlining-caller>": {"blocks": [], "total_size": 1},
            "k.1": {"blocks": blocks, "total_size": total},
        },
    }
    return f"<script>\nconst DATA ={json.dumps(data)};\n</script>"


WINDOW = "window allocation for operator {} {}. This allocation has 2 buffering levels."


def test_operands_spills_and_the_rest() -> None:
    found = memory_map(
        page(
            {"tag": "scratch operand", "size": 4096, "padding": 12},
            {"tag": "input " + WINDOW.format("input", 1), "size": 8192},
            {"tag": "output " + WINDOW.format("output", 0), "size": 8192},
            {"tag": "SPILL", "size": 512},
            {"tag": "scoped memory for <b>k</b>", "size": 64},
            {"tag": "input " + WINDOW.format("input", 9), "size": 32},
        ),
        KERNEL,
    )
    rows = [(use.name, use.role, use.space, use.size.value, use.buffers) for use in found.uses]
    assert rows == [
        ("acc", "operand", "vmem", 4096, 1),
        ("x", "operand", "vmem", 8192, 2),
        ("o", "operand", "vmem", 8192, 2),
        ("spilled registers", "spill", "vmem", 512, None),
        ("scoped memory for <b>k</b>", "internal", "vmem", 64, None),
        ("input 9", "operand", "vmem", 32, 2),
        ("lengths", "operand", "smem", 24, 1),
        ("table", "operand", "smem", 2 * 8 * 4 * 4, 2),
    ]
    assert (found.vmem.value, found.vmem.origin) == (20_480, "compiler")
    assert (found.capacity.value, found.smem.value) == (1 << 27, 24 + 256)
    scratch = found.of_operand("acc")
    assert scratch is not None
    assert scratch.padding == 12


@pytest.mark.parametrize(
    "params, flags, kind, expected",
    [
        ({}, (), "TPU v5 lite", (16 << 20, "assumed")),
        ({}, (), "TPU v6 lite", (32 << 20, "assumed")),
        ({}, (), "TPU of another kind", (None, "derived")),
        ({"vmem_limit_bytes": "8388608"}, (), "TPU v5 lite", (8 << 20, "derived")),
        ({"vmem_limit_bytes": "None"}, (), "TPU v5 lite", (16 << 20, "assumed")),
        ({"vmem_limit_bytes": str(1 << 30)}, (), "TPU v5 lite", (128 << 20, "derived")),
        ({}, ("--xla_tpu_scoped_vmem_limit_kib=65536",), "TPU v5 lite", (64 << 20, "derived")),
    ],
)
def test_the_limit_is_what_is_asked_for_or_the_default_of_the_chip(
    params: dict[str, str], flags: tuple[str, ...], kind: str, expected: tuple[int | None, str]
) -> None:
    compilation = Compilation(
        kernel="k", target="v5e", status="ok", key="0", device_kind=kind, flags=flags
    )
    found = memory_map(page(), replace(KERNEL, compiler_params=params), compilation)
    assert (found.limit.value, found.limit.origin) == expected
    has_more = expected[0] is not None and expected[0] < 1 << 27
    assert found.is_limit_raisable == has_more


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html></html>",
        "const DATA = {",
        "const DATA = []",
        f"const DATA = {'[' * 100_000}",
        'const DATA = {"hlo_breakdowns": {"k": {"blocks": [3, {"allocations": 7}]}}}',
    ],
)
def test_a_map_that_cannot_be_read_leaves_figures_missing(text: str) -> None:
    found = memory_map(text or None, KERNEL)
    assert found.vmem.value is None
    assert [use.space for use in found.uses] == ["smem", "smem"]


def test_sizes_that_are_no_numbers_are_left_out() -> None:
    found = memory_map(page({"tag": "SPILL", "size": -4}, {"tag": "x"}, total=True))
    assert (found.uses, found.vmem.value, found.smem.value) == ((), None, None)


def test_copies_around_the_kernel_are_not_its_memory() -> None:
    def of(tag: str, size: int) -> dict[str, object]:
        return {"blocks": [{"allocations": [{"tag": tag, "size": size}]}], "total_size": size}

    operations = {
        "<top-inlining-caller>": of("", 1 << 20),
        "copy": of("operand span for operand 0", 131_072),
        "kernel.1": of("scratch operand", 4096),
    }
    text = f"const DATA = {json.dumps({'hlo_breakdowns': operations})};"
    hlo = """\
  %copy = f32[1,2,256,64]{3,2,1,0:T(8,128)S(1)} copy(%args_0_.1)
  %kernel.1 = f32[64,128] custom-call(%copy), custom_call_target="tpu_custom_call"
"""
    found = memory_map(text, KERNEL, hlo=hlo)
    assert [(use.name, use.size.value) for use in found.uses if use.space == "vmem"] == [
        ("acc", 4096)
    ]
    assert found.vmem.value == 4096


def test_a_kernel_without_allocations_is_not_listed() -> None:
    """All arrays of such a kernel are in VMEM, where XLA placed them."""
    operations = {
        "<top-inlining-caller>": {"blocks": [], "total_size": 131_072},
        "copy": {"blocks": [], "total_size": 131_072},
    }
    text = f"const DATA = {json.dumps({'hlo_breakdowns': operations})};"
    hlo = '  %kernel.1 = f32[64] custom-call(%copy), custom_call_target="tpu_custom_call"\n'
    found = memory_map(text, KERNEL, hlo=hlo)
    assert (found.vmem.value, found.vmem.origin) == (0, "derived")
    assert "does not include the kernel" in found.vmem.note
    assert memory_map(text, KERNEL, hlo="").vmem.value == 131_072
    assert memory_map("const DATA = {};", KERNEL, hlo=hlo).vmem.value is None


def test_sizes_of_the_grid_are_not_numbered_among_operands() -> None:
    size = operand("grid[0]", "dynamic_grid", (), dtype="int32", memory_space="smem")
    kernel = replace(KERNEL, operands=(size, *KERNEL.operands))
    found = memory_map(page({"tag": "input " + WINDOW.format("input", 1), "size": 8192}), kernel)
    assert found.uses[0].name == "x"
