"""The model of the terminal UI, without a screen."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pallas_debug.profile.figures import Figure
from pallas_debug.profile.memory import AllocatedMemory, MemoryMap
from pallas_debug.tui.model.browser import (
    BEFORE,
    Against,
    Browser,
    Entry,
    KernelStep,
    TextPlace,
    kernel_name,
)
from pallas_debug.tui.model.drawn import memory_lines


def at(browser: Browser, entry: Entry, name: str, target: str | None = None) -> TextPlace:
    target = browser.target(entry, target)
    step = next(s for s in browser.steps(entry, target) if s.name == name)
    return TextPlace(entry=entry, target=target, step=step)


@pytest.fixture
def two(dumps: Path, tmp_path: Path) -> Browser:
    """The dump directory twice; in the second one the kernel has another digest."""
    other = tmp_path / "other"
    shutil.copytree(dumps, other)
    kernel = next(other.glob("vector_add-*"))
    kernel.rename(kernel.with_name("vector_add-00000000"))
    return Browser(dumps, other)


def test_a_folder_is_of_a_kernel() -> None:
    assert kernel_name("flash-fwd-1f2e3d4c") == "flash-fwd"
    assert kernel_name("add#2") == "add#2"


def test_how_large_a_text_is(two: Browser) -> None:
    place = at(two, two.entries[0], "apply-vector-layout", "v5e")
    assert two.size(place) == len(two.text(place).encode())
    two.path(place).unlink()
    assert two.size(place) == 0
    assert two.size(replace(place, step=KernelStep(label="stats"))) == 0


def test_what_a_text_is_compared_with(two: Browser) -> None:
    first, second = sorted(two.entries, key=lambda e: e.dump)
    place = at(two, first, "apply-vector-layout", "v5e")
    before = two.base(place, BEFORE)
    assert before is not None
    assert before.step.changed
    assert before.target == "v5e"
    assert two.base(at(two, first, "source"), BEFORE) is None

    v6e = two.base(place, Against(target="v6e"))
    assert v6e is not None
    assert (v6e.target, v6e.step.name) == ("v6e", "apply-vector-layout")
    assert two.base(place, Against(target="v4")) is None

    step = two.base(place, Against(step="mosaic"))
    assert step is not None
    assert (step.entry, step.target, step.step.stage) == (first, "v5e", "mosaic")

    assert two.counterpart(first) == second
    twin = two.base(place, Against(other_dump=True))
    assert twin is not None
    assert (twin.entry, twin.target) == (second, "v5e")
    assert two.label(place, twin) == os.path.relpath(two.roots[0], os.path.commonpath(two.roots))


def test_a_kernel_that_several_could_be_the_twin_of_has_none(two: Browser) -> None:
    folder = next(two.roots[1].glob("vector_add-*"))
    shutil.copytree(folder, folder.with_name("vector_add-11111111"))
    two = Browser(*two.roots)
    assert two.counterpart(next(e for e in two.entries if e.dump == 0)) is None


def test_the_use_of_units_is_drawn() -> None:
    browser = Browser(Path(__file__).parent / "data" / "dumps")
    double = next(e for e in browser.entries if kernel_name(e.name) == "double")
    title, _, *units = browser.lines(at(browser, double, "utilization", "v5e"))
    assert title == "65 bundles: the share of each unit that is used, and where"
    scalar = next(line for line in units if line.startswith("SALU"))
    assert "████████▊" in scalar
    assert "  62 %  ▕ ▄███▆█████▆▄▄▄▄█  ███▆▄▆▄▂█▄    ▏ scalar arithmetic" in scalar


def test_memory_is_drawn_by_its_size() -> None:
    def size(value: float | None) -> Figure:
        return Figure(value=value, unit="bytes")

    def use(name: str, value: float) -> AllocatedMemory:
        return AllocatedMemory(name=name, role="operand", space="vmem", size=size(value))

    memory = MemoryMap(
        uses=(use("q", 1024), use("scores", 3072)),
        vmem=size(4096),
        smem=size(0),
        limit=size(16384),
        capacity=size(16384),
    )
    assert list(memory_lines(memory)) == [
        "VMEM: 4 KiB of 16 KiB that the kernel may use",
        f"{'███████':28} 25 %",
        "",
        f"scores      3 KiB  {'██████████▌':14}  75 %",
        f"q           1 KiB  {'███▌':14}  25 %",
    ]
