"""The files of a kernel's operation, among those that libtpu writes, as both versions name them."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from pallas_debug.compiler import schedules
from pallas_debug.compiler.schedules import Files, of_kernel
from pallas_debug.compiler.stages import parse
from pallas_debug.store import layout

BEGAN = 1_795_423_646_000_000_000
STAMP, LATER = BEGAN + 952_585_755, BEGAN + 1_007_587_520

HLO = """
%fused (p: f32[8]) -> f32[8] {
  ROOT %add.2 = f32[8] add(%p, %p)
}
ENTRY %main (x: f32[8]) -> f32[8] {
  %fusion.3 = f32[8] fusion(%x), calls=%fused
  ROOT %odd-72-name.1 = f32[8] custom-call(%fusion.3), custom_call_target="tpu_custom_call"
}
"""
WRITTEN = {
    f"{STAMP}-TLP-00-critical-path.txt": "of the program",
    f"{STAMP}-TLP-04-final_bundles.txt": "of the program, and long: " + "x" * 900,
    f"{STAMP}-TLP-05-vmem_report.html": "<html>",
    f"{STAMP}-TLP-hlo.txt": HLO,
    f"{STAMP}-<late-finalization>-04-final_bundles.txt": "of libtpu's own",
    f"{STAMP}-fusion.3-01-final_bundles.txt": "of a fusion, and longer than the kernel",
    f"{LATER}-odd-72-name.1-00-critical-path.txt": "its path",
    f"{LATER}-odd-72-name.1-01-post-GVN-2.txt": "its values",
    f"{LATER}-odd-72-name.1-02-final_bundles.txt": "its bundles",
    f"{LATER}-odd-72-name.1-03-final_hlo-static-per-bundle-utilization.txt": "its units",
    f"{LATER}-odd-72-name.1-04-something new.txt": "of a later libtpu",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in WRITTEN.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def kept(folder: Path, stages: str, since: int = BEGAN) -> dict[str, str]:
    found: Files = of_kernel(folder.iterdir(), parse(stages), since=since)
    return {
        name: content.read_text() if isinstance(content, Path) else content.decode()
        for name, content in found.items()
    }


def test_the_schedule_is_that_of_the_kernel(folder: Path) -> None:
    found = kept(folder, "bundles")
    assert found == {
        layout.BUNDLES: "its bundles",
        layout.UTILIZATION: "its units",
        layout.CRITICAL_PATH: "its path",
        layout.VMEM: "<html>",
        layout.HLO: HLO,
    }


def test_passes_of_llo_keep_their_numbers(folder: Path) -> None:
    assert kept(folder, "mosaic,llo:post-*") == {"llo/01-post-GVN-2.txt": "its values"}
    assert set(kept(folder, "mosaic,llo")) == {
        "llo/00-critical-path.txt",
        "llo/01-post-GVN-2.txt",
        "llo/02-final_bundles.txt",
        "llo/03-final_hlo-static-per-bundle-utilization.txt",
        "llo/04-something new.txt",
    }


def test_a_text_of_the_schedule_is_not_kept_twice(folder: Path) -> None:
    llo = [name for name in kept(folder, "llo,bundles") if name.startswith("llo/")]
    assert llo == ["llo/01-post-GVN-2.txt", "llo/04-something new.txt"]


def test_what_an_earlier_compilation_wrote_late_is_left_out(folder: Path) -> None:
    assert kept(folder, "bundles,llo", since=LATER + 1) == {}


@pytest.mark.parametrize(
    "name",
    [
        "odd-72-name.1_static_llo_profile.textproto",
        "odd-72-name.1_TPU v5 lite_static_llo_profile.textproto",
        "odd-72-name.1.x_ref_TPU7x_static_llo_profile.textproto",
    ],
)
def test_the_estimate_of_both_versions(folder: Path, name: str) -> None:
    for other in ("fusion.3", "odd-72-name.10", "odd-72-name"):
        (folder / f"{other}_TPU v5 lite_static_llo_profile.textproto").write_text("another's")
    (folder / name).write_text("its own")
    assert kept(folder, "estimate")[layout.ESTIMATE] == "its own"
    assert layout.ESTIMATE not in kept(folder, "bundles")


def test_of_a_kernel_that_failed_before_the_hlo_was_written(folder: Path) -> None:
    """The operation with the largest text is the kernel's."""
    (folder / f"{STAMP}-TLP-hlo.txt").unlink()
    (folder / f"{LATER}-odd-72-name.1-02-final_bundles.txt").write_text("y" * 500)
    assert kept(folder, "bundles")[layout.BUNDLES] == "y" * 500


def test_without_any_file() -> None:
    assert of_kernel([], parse("estimate,llo")) == {}


def test_a_program_whose_kernel_has_no_schedule(folder: Path) -> None:
    """As on the SparseCore: the largest of the other operations is not the kernel."""
    for path in folder.glob("*odd-72*"):
        path.unlink()
    micros = STAMP // 1000
    (folder / f"sc-start.0_{micros}_bundles.txt").write_text("sets it up, and is the longest")
    (folder / f"kernel.call-start_{micros}_bundles.txt").write_text("its bundles")
    (folder / f"kernel.call-start_{micros - 10**9}_bundles.txt").write_text(
        "of another compilation"
    )
    found = kept(folder, "bundles")
    assert found[layout.SPARSECORE] == "its bundles"
    assert set(found) == {layout.SPARSECORE, layout.HLO, layout.VMEM}


def test_files_that_are_written_late_are_waited_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = folder / f"{STAMP}-odd-72-name.1-00-critical-path.txt"
    for path in folder.glob("*odd-72*"):
        path.rename(folder / path.name.replace(str(LATER), str(STAMP)))
    for path in folder.glob("*TLP*"):
        path.unlink()
    for path in folder.glob("*-0[14]-final_bundles*"):
        path.unlink()
    late.unlink()
    writer = threading.Timer(0.1, late.write_text, ["late"])
    writer.start()
    with monkeypatch.context() as patch:
        patch.setattr(schedules, "_LATE", 60.0)
        schedules.wait_for_files(folder, since=BEGAN)
    assert late.exists()
    late.unlink()
    start = time.monotonic()
    schedules.wait_for_files(folder, since=BEGAN)  # it never comes
    assert 0.4 < time.monotonic() - start < 60
    schedules.wait_for_files(folder, since=LATER)  # nothing of this compilation is missing
