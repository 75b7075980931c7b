"""Bytes copied, compared with work."""

from __future__ import annotations

import pytest

from pallas_debug.ir.operations import Module
from pallas_debug.profile.cycles import estimate_cycles
from pallas_debug.profile.schedule import schedule_of
from pallas_debug.profile.tracing import trace
from pallas_debug.profile.traffic import Traffic, products_of, traffic_of

LISTING = """\
     0   :  { %s1_s0 = smov 0 }
   0x1   :  { %2 = dma.vmem_to_hbm [thread:$0]  %s1_s0, 4096, %s1_s0, [#allocation2] \
/* loc("k.py":3:0 to :5) */ }
   0x2   :  { %3 = vsyncpa [#allocation3], 1 }
"""
COPY = (
    "tpu.enqueue_dma source(%0 : memref<512x128xbf16, #tpu.memory_space<vmem>>) "
    "target(%1 : memref<512x128xbf16, #tpu.memory_space<any>>) target_semaphore(%2 : "
    'memref<!tpu.dma_semaphore>){device} loc("k.py":3:0 to :5)'
)


def traffic(device: str = "", target: str = "v5e") -> Traffic:
    schedule = schedule_of(LISTING, target=target)
    mosaic = Module.of(f"module {{\n  {COPY.format(device=device)}\n}}\n", "mlir")
    return traffic_of(
        schedule, trace(schedule.listing), estimate_cycles(schedule, mosaic=mosaic), mosaic
    )


@pytest.mark.parametrize(
    "device, note",
    [
        ("", "of what the published peaks allow"),
        (" device_id(%3)", "the cycles do not include the links between devices"),
    ],
)
def test_copies_to_other_devices(device: str, note: str) -> None:
    found = traffic(device)
    assert found.attained.note == note
    assert found.written.value == 131_072


def test_a_chip_without_published_peaks() -> None:
    assert traffic(target="mine").attained.note == "no peaks are published for mine"


def test_products_of_a_loop_for_left_over_iterations_do_not_count() -> None:
    """jax writes a loop over all iterations, and one over those left over."""
    product = "tpu.matmul %0, %0, %0 : vector<8x128xf32>, vector<128x128xf32>, vector<8x128xf32>"
    line = f'      %9 = {product} -> vector<8x128xf32> loc("k.py":3:0 to :5)'
    lines = [
        "module {",
        "  func.func @kernel(%arg0: i32, %0: i32) {",
        "    %c0 = arith.constant 0 : i32",
        "    %c1 = arith.constant 1 : i32",
        "    %4 = arith.addi %c0, %arg0 : i32",
        "    %1 = arith.divsi %arg0, %c1 : i32",
        "    %2 = arith.muli %1, %c1 : i32",
        "    %3 = arith.addi %c0, %2 : i32",
        "    scf.for %i = %c0 to %3 step %c1  : i32 {",
        line,
        "    }",
        "    scf.for %i = %3 to %4 step %c1  : i32 {",
        line,
        "    }",
        "  }",
        "}",
    ]
    schedule = schedule_of(LISTING, target="v5e")
    mosaic = Module.of("\n".join(lines) + "\n", "mlir")
    (found,) = products_of(schedule, trace(schedule.listing), (), mosaic)
    assert found.flops == 2 * 8 * 128 * 128
