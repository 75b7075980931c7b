"""The report over a kernel that was compiled with its schedule: figures, strip, bundles, blocks."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pages import Browser, kernel_id, open_kernel
from selenium.webdriver import Keys

import pallas_debug
from pallas_debug.cli.exits import Exit
from pallas_debug.findings.faults import Fault
from pallas_debug.model import Dump, Finding, RunRecord, SourceLine
from pallas_debug.profile.advice import Advice
from pallas_debug.profile.figures import Figure
from pallas_debug.profile.whatif import WhatIf
from pallas_debug.store import Store, open_dumps
from pallas_debug.store.profiles import StoredProfile, read_profile

ALL = "[...document.querySelectorAll('{}')]"
STRIP = ".pd-current .pd-target.pd-current .pd-strip-scroll"


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Dump:
    import jax
    import jax.numpy as jnp
    from pallas_debug_kernels import matmul

    root = tmp_path_factory.mktemp("report") / "dumps"
    x = jax.ShapeDtypeStruct((256, 512), jnp.float32)
    y = jax.ShapeDtypeStruct((512, 256), jnp.float32)
    block = {"block_m": 128, "block_n": 128, "block_k": 128}
    (made,) = pallas_debug.dump(
        matmul, x, y, **block, activation="relu", targets="v5e,v6e", to=root
    )
    return made


@pytest.fixture(scope="module")
def profile(dump: Dump) -> StoredProfile:
    (stored,) = open_dumps(dump.folder).kernels()
    found = read_profile(stored, stored.target("v5e"))
    assert found is not None
    return found


@pytest.fixture(scope="module")
def page(dump: Dump) -> Iterator[Path]:
    from pallas_debug.report import write_report

    reader = open_dumps(dump.folder.parent)
    path = dump.folder.parent.parent / "report.html"
    write_report(reader, reader.kernels(), path, title="compiled")
    yield path
    path.unlink()


@pytest.mark.slow
def test_figures_are_those_of_the_schedule(page: Path, profile: StoredProfile) -> None:
    html = page.read_text()
    stats = profile.profile.stats
    assert stats.bundles.value is not None
    assert f"{stats.bundles.value:,} bundles · " in html
    assert f'title="{stats.bundles.note}" class="pd-value">{stats.bundles.value:,}<' in html
    most = stats.lines[0]
    assert f">{Path(most.source.file).name}:{most.source.line}</a>" in html
    for use in stats.memory.uses:
        assert use.name in html


@pytest.mark.slow
def test_a_bundle_and_its_line_are_one_selection(
    browser: Browser, page: Path, profile: StoredProfile
) -> None:
    open_kernel(browser, page, "matmul", "/t0")
    browser.wait("document.querySelector(args[0])", STRIP)
    busiest = next(c for c in profile.profile.stats.lines if c.units.get("MXU"))
    line = busiest.source.line
    browser.open(page, f"{kernel_id(browser, 'matmul')}/t0/bundles/l{line}")
    status = browser.wait(
        "(t => t.includes('of bundles') && t)(document.querySelector('.pd-current .pd-status').textContent)"
    )
    assert status.startswith(f"{Path(busiest.source.file).name}:{line}: ")
    marked = browser.run(
        "[...document.querySelectorAll('.pd-current .pd-text .pd-linked')].map(r => r.textContent)"
    )
    assert marked
    shares = browser.run(
        """
        const rows = [...document.querySelectorAll('.pd-current .pd-source .pd-row')];
        const row = rows.find(row => row.querySelector('.pd-no')?.textContent === String(args[0]));
        return [row.querySelector('.pd-count').textContent, row.title];
        """,
        line,
    )
    assert shares[0].endswith("%")
    assert shares[1].startswith(f"{busiest.bundles:,} bundle")


@pytest.mark.slow
def test_the_strip_by_keys(browser: Browser, page: Path, profile: StoredProfile) -> None:
    table = profile.profile.schedule.table
    assert table is not None
    open_kernel(browser, page, "matmul", "/t0")
    browser.wait("document.querySelector(args[0])", STRIP)
    browser.run(f"(document.querySelector('{STRIP}').focus(), true)")
    value = f"document.querySelector('{STRIP}').getAttribute('aria-valuetext')"
    browser.press(Keys.END)
    assert browser.run(f"document.querySelector('{STRIP}').ariaValueNow") == str(
        len(table.rows) - 1
    )
    browser.press(Keys.HOME, *[Keys.ARROW_RIGHT] * 5)
    used = [
        f"{name} {count}/{capacity}"
        for name, count, capacity in zip(table.names, table.rows[5], table.capacity, strict=True)
        if count
    ]
    text = browser.run(value)
    number = profile.profile.schedule.bundles[5].number
    assert text.startswith(f"bundle {number:#x} · runs ")
    assert (", ".join(used) or "no unit in use") in text
    browser.press("+", "+")
    assert browser.run(f"document.querySelector('{STRIP}').scrollWidth") >= 4 * len(table.rows)
    browser.press(Keys.ENTER)
    browser.wait(
        "[...document.querySelectorAll('.pd-current .pd-text:not([hidden]) select')]"
        ".some(select => select.value === '0/bundles')"
    )


@pytest.mark.slow
def test_targets_can_be_compared(browser: Browser, page: Path) -> None:
    open_kernel(browser, page, "matmul", "/t0")
    choose = """
      const list = document.querySelector('.pd-current .pd-text .pd-base');
      const pass = /^1\\/\\d+-apply-vector-layout$/;
      list.value = [...list.options].map((option) => option.value).find((key) => pass.test(key));
      list.dispatchEvent(new Event('change'));
      return true;
    """
    browser.run(choose)
    browser.wait("document.querySelector('.pd-current .pd-text .pd-pane-message')?.textContent")
    message = browser.text(".pd-current .pd-text .pd-pane-message")
    assert re.fullmatch(
        r"(\+[\d,]+ −[\d,]+ lines against|no line differs from) \d+-apply-vector-layout", message
    )


@pytest.mark.slow
def test_advice_links_to_its_line(
    browser: Browser, dump: Dump, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pallas_debug.profile.stats import Profile
    from pallas_debug.report import write_report

    kernel = dump.kernel.source
    assert kernel is not None
    advice = Advice(
        kind="relayout",
        message="the product <b>waits</b>",
        remedy="turn it round",
        what_if=WhatIf(
            change="x_ref[0]=64", now=Figure(value=200), cycles=Figure(value=100), steps=4
        ),
        source=SourceLine(file=kernel.file, line=kernel.line, text="def kernel(...)"),
    )
    monkeypatch.setattr(Profile, "advice", (advice,))
    reader = open_dumps(dump.folder.parent)
    path = tmp_path / "report.html"
    write_report(reader, reader.kernels(), path, title="advised", targets=["v5e"])
    browser.open(path)
    shown = "[...document.querySelectorAll('{} .pd-proposals li')].map(li => li.textContent)"
    (proposal,) = browser.run(shown.format("#overview"))
    assert proposal.startswith("100 cycles50 %matmul on v5e: turn it round kernel.py:")
    why = "relayout: the product <b>waits</b>; 200 → 100 cycles (x_ref[0]=64)"
    assert proposal.endswith(why)
    open_kernel(browser, path, "matmul", f"/t0/l{kernel.line}")
    (own,) = browser.run(shown.format(".pd-current"))
    assert own.startswith("100 cycles50 %turn it round kernel.py:")
    assert own.endswith(why)


@pytest.mark.slow
def test_the_timeline_is_that_of_the_command(command, page: Path, dump: Dump) -> None:  # type: ignore[no-untyped-def]
    shown = command("timeline", dump.folder, "-t", "v6e").stdout.splitlines()
    html = page.read_text()
    assert f"<p>{shown[0]}</p>" in html
    (copies,) = [line for line in shown if line.startswith("copies: ")]
    assert f"<li>{copies}" in html
    of_v6e = html[html.index(f"<p>{shown[0]}</p>") :].partition("</ul>")[0]
    for name in ("compute", "x_ref", "y_ref", "out_ref"):
        (row,) = re.findall(f"<span>{name}</span><svg [^>]*>(.*?)</svg>", of_v6e)
        kinds = set(re.findall(r'class="pd-(\w+)"', row))
        expected = {"compute": {"compute", "wait"}, "out_ref": {"write"}}.get(name, {"fetch"})
        assert kinds == expected
    copies = re.search(r"x_ref (\d+) of", "\n".join(shown))
    assert copies is not None
    (row,) = re.findall("<span>x_ref</span><svg [^>]*>(.*?)</svg>", of_v6e)
    assert row.count("M") == int(copies[1])


@pytest.mark.slow
def test_two_targets_side_by_side(browser: Browser, page: Path, dump: Dump) -> None:
    (stored,) = open_dumps(dump.folder).kernels()
    found = {name: read_profile(stored, stored.target(name)) for name in ("v5e", "v6e")}
    before, after = (
        f"{one.profile.stats.cycles.total.value:,}" for one in found.values() if one is not None
    )
    browser.open(page)
    text = "[...document.querySelectorAll('#overview .pd-part td')].map(td => td.textContent)"
    assert f"{before} → {after}" in browser.run(text)
    open_kernel(browser, page, "matmul", "/t0")
    compared = browser.run(f"{ALL.format('.pd-current .pd-stacks th')}.map(th => th.textContent)")
    assert "matmul− v5e  + v6e" in compared
    browser.press("s")
    chosen = f"{ALL.format('.pd-current .pd-text')}.map(n => n.querySelector('select').value)"
    first, second = browser.wait(f"({chosen})[1] && ({chosen})")
    assert (first[0], second[0]) == ("0", "1")
    assert first.partition("-")[2] == second.partition("-")[2]
    assert "apply-vector-layout" in first


DOUBLED = """\
import jax
from jax.experimental import pallas as pl


def doubled(x_ref, o_ref):
    o_ref[...] = x_ref[...] + x_ref[...]


def double(x):
    return pl.pallas_call(doubled, out_shape=x)(x)
"""


@pytest.mark.slow
def test_old_and_new_side_by_side(browser: Browser, command, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    for folder, text in (("old", DOUBLED), ("new", DOUBLED.replace("def dou", "\n\n\ndef dou", 1))):
        (tmp_path / "twice.py").write_text(text)
        words = ("twice:double", "--arg", "f32[8,128]", "--stages", "bundles", "--to", folder)
        assert command("dump", *words).returncode == 0
    shutil.copytree(next((tmp_path / "old").glob("doubled-*")), tmp_path / "old" / "gone-00000000")
    manifest = tmp_path / "old" / "gone-00000000" / "kernel.json"
    manifest.write_text(manifest.read_text().replace('"doubled"', '"gone"'))
    (folder,) = (tmp_path / "old").glob("doubled-*")
    race = Finding(kind=Fault.DATA_RACE, kernel="doubled", message="a race")
    record = RunRecord(run="r", name="a", kernels=(folder.name,), findings=(race,))
    Store(tmp_path / "old").put_run(record)
    done = command("report", "old", "new", "-o", "both.html")
    assert done.stdout.startswith("both.html: 1 kernel, ")
    open_kernel(browser, tmp_path / "both.html", "doubled", "/t1/l9")
    tabs = browser.run(f"{ALL.format('.pd-current .pd-tabs a')}.map(a => a.firstChild.data)")
    assert tabs == ["v5e old", "v5e"]
    assert browser.text(".pd-verdict").endswith("gone only in the old dump")
    assert "− v5e old  + v5e" in browser.text(".pd-kernel")
    assert "same" in browser.text(".pd-kernel .pd-stacks")
    assert "Found in the old dump only" in browser.text(".pd-kernel")
    browser.press("s")
    chosen = f"{ALL.format('.pd-current .pd-text')}.map(n => n.querySelector('select').value)"
    first, second = browser.wait(f"({chosen})[1] && ({chosen})")
    assert (first[0], second[0]) == ("1", "0")
    # Line 9 of the new source was line 6 of the old one.
    marked = browser.wait(
        f"(n => n[1] && n)({ALL.format('.pd-current .pd-text')}"
        ".map(n => n.querySelectorAll('.pd-linked').length))"
    )
    assert marked[0] == marked[1]
    status = browser.text(".pd-current .pd-status")
    assert status.startswith(f"twice.py:9: {marked[0]} line")
    assert browser.errors() == []


@pytest.mark.slow
def test_a_dump_in_a_notebook(dump: Dump, profile: StoredProfile) -> None:
    html = dump._repr_html_()
    assert "<h4>Memory</h4>" in html
    assert "<h4>Operands</h4>" in html
    assert "<script" not in html
    stats = profile.profile.stats
    assert "\n" not in repr(stats)
    alone = stats._repr_html_()
    assert "Python lines by share of the cycles" in alone
    assert f"{stats.bundles.value:,}" in alone


def test_libtpus_estimate_beside_ours(profile: StoredProfile) -> None:
    stats = profile.profile.stats

    def shown(total: int, libtpu: int | None) -> str:
        cycles = replace(
            stats.cycles,
            total=Figure(value=total),
            least=Figure(value=30_000),
            compiler=Figure(value=libtpu),
        )
        return replace(stats, cycles=cycles)._repr_html_()

    both = "at least 30,000 without what depends on data; 41,000 by libtpu’s estimate"
    assert both in shown(90_000, 41_000)
    assert "libtpu’s estimate" not in shown(90_000, None)
    waiting = replace(stats.cycles, waiting=Figure(value=2_345))
    html = replace(stats, cycles=waiting)._repr_html_()
    assert "2,345 of them waiting for copies" in html


@pytest.mark.slow
def test_the_command_and_what_it_reports(command, dump: Dump, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    done = command("report", dump.folder.parent, "-o", "out.html")
    assert done.returncode == 0
    written = (tmp_path / "out.html").stat().st_size
    assert done.stdout == f"out.html: 1 kernel, {written:,} B\n"
    done = command("report", dump.folder.parent / "matm", "-t", "v6e", "-o", "one.html")
    assert done.returncode == 0
    title = f"<title>{dump.folder.parent.name}</title>"
    assert title in (tmp_path / "one.html").read_text()
    assert 'href="#k0/t1"' not in (tmp_path / "one.html").read_text()
    done = command("report", dump.folder.parent, "-o", "no/where.html")
    assert done.returncode == Exit.CANNOT_RUN
    assert "no/where.html cannot be written: No such file or directory" in done.stderr
    done = command("report", dump.folder.parent, "-t", "v4", "-o", "x.html")
    assert done.returncode == Exit.USAGE
    assert "no kernel here was compiled for 'v4'" in done.stderr


def test_a_directory_with_a_truncated_text(command, dump: Dump, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    shutil.copytree(dump.folder.parent, tmp_path / "cut")
    text = next((tmp_path / "cut").glob("*/v5e/mosaic.mlir"))
    text.write_bytes(text.read_bytes()[:100])
    done = command("report", "cut", "-o", "r.html")
    assert done.returncode == Exit.CANNOT_RUN
    (line,) = [line for line in done.stderr.splitlines() if "mosaic.mlir" in line]
    assert "is damaged: it has 100 bytes, and its manifest records" in line
    assert (tmp_path / "r.html").is_file()
