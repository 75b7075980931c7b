"""Bytes to other devices, and the time that they take at least."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pallas_debug.ir.operations import Module
from pallas_debug.profile.cycles import estimate_cycles
from pallas_debug.profile.schedule import schedule_of
from pallas_debug.profile.stats import Profile, ScheduleTexts
from pallas_debug.profile.text import lines_of
from pallas_debug.profile.tracing import trace
from pallas_debug.profile.traffic import Traffic, products_of, traffic_of

LISTING = """\
     0   :  { %s1_s0 = smov 0 }
   0x1   :  { %2 = dma.vmem_to_hbm [thread:$0]  %s1_s0, 4096, %s1_s0, [#allocation2] \
/* loc("k.py":3:0 to :5) */ }
   0x2   :  { %3 = vsyncpa [#allocation3], 1 }
"""
COPY = (
    "tpu.enqueue_dma source(%0 : memref<{shape}xbf16, #tpu.memory_space<vmem>>) "
    "target(%1 : memref<{shape}xbf16, #tpu.memory_space<any>>) target_semaphore(%2 : "
    'memref<!tpu.dma_semaphore>){device} loc("k.py":3:0 to :5)'
)


def traffic(target: str, *, shape: str = "512x128", device: str = " device_id(%3)") -> Traffic:
    schedule = schedule_of(LISTING, target=target)
    mosaic = Module.of(f"module {{\n  {COPY.format(shape=shape, device=device)}\n}}\n", "mlir")
    return traffic_of(
        schedule, trace(schedule.listing), estimate_cycles(schedule, mosaic=mosaic), mosaic
    )


@pytest.mark.parametrize("target, bandwidth", [("v5e", 200e9), ("v5p", 600e9), ("v6e", 400e9)])
def test_bytes_to_other_devices_take_the_time_of_the_links(target: str, bandwidth: float) -> None:
    found = traffic(target)
    assert found.sent.value == 131_072
    assert found.sending.value == pytest.approx(131_072 / bandwidth)
    assert found.roofline.value >= found.sending.value


def test_links_that_take_longer_than_all_cycles_are_the_bound() -> None:
    found = traffic("v5e", shape="8192x8192")
    assert (found.bound, found.attained.value) == ("links", None)
    stats = Profile(texts=ScheduleTexts(), kernel=None, compilation=None).stats
    printed = list(lines_of(replace(stats, traffic=found), whole=False))
    (line,) = (line for line in printed if line.startswith("    links"))
    assert "134,217,728 a bytes to other devices, at least 671.1 a µs" in line
    assert any("links: sending bytes to other devices takes longer" in line for line in printed)


def test_copies_within_a_device_and_unknown_links() -> None:
    local = traffic("v5e", device="")
    assert (local.sent.value, local.sending.value) == (0, 0.0)
    unknown = traffic("v4")
    assert (unknown.sent.value, unknown.sending.value, unknown.roofline.value) == (
        131_072,
        None,
        None,
    )
    assert "no bandwidth of links is published for v4" in unknown.roofline.note


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
