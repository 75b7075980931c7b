"""Profiles of stored kernels: files that are there, missing and damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from pallas_debug.model import FileRecord, Kernel
from pallas_debug.store import open_dumps
from pallas_debug.store.layout import BUNDLES, UTILIZATION
from pallas_debug.store.profiles import read_profile
from pallas_debug.store.writer import Store

LISTING = """\
     0   :  { %s0 = inlined_call_operand.hbm [shape: f32[8,128]] }
   0x1   :  { %v1 = vld [vmem:[%s0] sm:$0xff]  ;;  %v2 = vmov 0.0 }
   0x2   :  { %v3 = vadd.f32 %v1, %v2 }
"""
COUNTS = """\
== CAPACTIY:
MXU, VALU, VLOAD
    4     4     3
== UTILIZATION:
0 0 0
0 1 1
0 1 0
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "dumps")


def test_a_dump_without_bundles_has_no_profile(store: Store, kernel: Kernel, compiled) -> None:
    store.put_kernel(kernel, jaxpr="", source=None)
    store.put_compilation(kernel, *compiled())
    (stored,) = open_dumps(store.root).kernels()
    assert read_profile(stored, stored.compilations[0]) is None


def test_a_file_that_is_damaged_counts_as_missing(store: Store, kernel: Kernel, compiled) -> None:
    store.put_kernel(kernel, jaxpr="", source=None)
    compilation, files = compiled()
    files |= {BUNDLES: LISTING.encode(), UTILIZATION: COUNTS.encode()}
    store.put_compilation(kernel, compilation, files)
    (stored,) = open_dumps(store.root).kernels()
    found = read_profile(stored, stored.compilations[0])
    assert found is not None
    assert found.problems == ()
    assert found.profile.stats.bundles.value == 3
    assert [unit.name for unit in found.profile.stats.units] == ["MXU", "VALU", "VLOAD"]

    assert isinstance(stored.compilations[0].compilation.files[UTILIZATION], FileRecord)
    (stored.compilations[0].folder / UTILIZATION).write_text("cut")
    found = read_profile(stored, stored.compilations[0])
    assert found is not None
    (problem,) = found.problems
    assert "utilization.txt is damaged: it has 3 bytes" in problem
    assert found.profile.stats.bundles.value == 3
    assert found.profile.stats.units == ()
