"""The page as a file: what it refers to, what its policy allows, what it escapes."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest
from jaxless import Run
from pages import DOUBLE, DUMPS, Elements, Write

from pallas_debug.cli.exits import Exit
from pallas_debug.report import page

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&\"'\u2028"


def parsed(path: Path) -> Elements:
    return Elements.of(path.read_text("utf-8"))


def inflated(path: Path, id_: str) -> Any:
    found = re.search(f'<script type="text/plain" id="{id_}">([^<]*)</script>', path.read_text())
    assert found is not None
    return json.loads(zlib.decompress(base64.b64decode(found[1]), -15))


def test_refers_to_nothing_outside_of_it(write: Write) -> None:
    found = parsed(write())
    addresses = [
        value or ""
        for _, attributes in found.elements
        for name, value in attributes.items()
        if name in ("href", "src", "action", "data", "poster", "srcset")
    ]
    assert addresses
    assert {address[:1] for address in addresses} == {"#"}
    assert not {"link", "iframe", "object", "embed", "form", "base"} & {
        n for n, _ in found.elements
    }
    style = page.static(page.STYLES)
    assert "url(" not in style
    assert "@import" not in style
    script = page.static(page.SCRIPTS)
    assert not re.search(r"\bfetch\(|XMLHttpRequest|WebSocket|import\(|https?://", script)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", script)


def test_the_policy_allows_only_what_is_in_the_page(write: Write) -> None:
    found = parsed(write())
    (policy,) = [
        attributes["content"] or ""
        for name, attributes in found.elements
        if name == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    hashes = re.findall(r"'sha256-([^']*)'", policy)
    texts = [*found.texts["script"], *found.texts["style"]]
    assert sorted(hashes) == sorted(
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts
    )
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert not [a for _, attributes in found.elements for a in attributes if a.startswith("on")]
    assert not [a for _, attributes in found.elements for a in attributes if a == "style"]


def test_shows_kernels_targets_and_findings_without_a_script(write: Write) -> None:
    words = " ".join(parsed(write()).words)
    for expected in ("double", "unaligned", "running", "v5e", "OutOfBoundsRead", "listed.py:10"):
        assert expected in words
    assert "x_ref[32:40, 0:128] reaches 8 rows past x_ref" in words
    assert "2 times" in words
    assert "not judged" in words
    assert "12-apply-vector-layout" in words


def verdict(path: Path) -> list[str]:
    """Parts of the sentence at the top of the page."""
    (found,) = re.findall(r'<ul class="pd-verdict">(.*?)</ul>', path.read_text())
    return [re.sub("<[^>]*>", "", part) for part in re.findall("<li>(.*?)</li>", found)]


def test_begins_with_a_verdict_and_shows_findings_before_costs(write: Write) -> None:
    path = write()
    failed = "✕ 2 of 3 kernels do not compile for v5e"
    assert verdict(path) == [failed, "✕ 1 finding", "– 2 not judged"]
    headings = re.findall("<h[12][^>]*>([^<]*)<", path.read_text())
    assert headings[:4] == ["dumps", "Findings", "What would save cycles", "Kernels"]


def test_the_verdict_on_kernels_without_a_fault(dumps: Path, write: Write) -> None:
    for name in ("running-cc4e5499", "unaligned-00bb54cf"):
        shutil.rmtree(dumps / name)
    (run,) = dumps.glob("runs/*/*.json")
    document = json.loads(run.read_text()) | {"findings": [], "hints": []}
    run.write_text(json.dumps(document | {"judged": {DOUBLE: ["static", "machine"]}}))
    assert verdict(write(dumps)) == ["✓ 1 kernel compiled for v5e", "✓ no findings"]
    run.write_text(json.dumps(document))
    assert verdict(write(dumps)) == ["✓ 1 kernel compiled for v5e", "– 1 not judged"]


@pytest.mark.parametrize("gaps", [0, 1])
def test_a_kernel_without_findings_names_the_engines_that_judged_it(
    dumps: Path, write: Write, gaps: int
) -> None:
    (run,) = dumps.glob("runs/*/*.json")
    document = json.loads(run.read_text())
    document["findings"] = []
    document["judged"] = {DOUBLE: ["static", "v5e", "checks"], "gone-00000000": ["static"]}
    part = {"kernel": "double", "engine": "checks", "reason": "one store", "is_partial": True}
    document["gaps"] = [part] * gaps
    run.write_text(json.dumps(document))
    (cell,) = re.findall("judged by [^<]*", write(dumps).read_text())
    assert cell == "judged by static, checks" + ", in part" * gaps


@pytest.mark.parametrize("field", ["name", "source", "operand", "target", "pass", "finding"])
def test_markup_in_names_stays_text(dumps: Path, write: Write, field: str) -> None:
    kernel, compilation = (
        dumps / DOUBLE / name for name in ("kernel.json", "v5e/compilation.json")
    )
    (run,) = dumps.glob("runs/*/*.json")

    def change(path: Path, edit: Any) -> None:
        document = json.loads(path.read_text())
        edit(document)
        path.write_text(json.dumps(document))

    if field == "name":
        change(kernel, lambda d: d.update(name=EVIL))
    elif field == "source":
        change(kernel, lambda d: d["source"].update(file=EVIL, text=EVIL))
    elif field == "operand":
        change(kernel, lambda d: d["operands"][0].update(name=EVIL, index_map=EVIL, dtype=EVIL))
    elif field == "target":
        change(compilation, lambda d: d.update(target=EVIL))
    elif field == "pass":
        change(compilation, lambda d: d["passes"][12].update(name=EVIL))
    else:
        change(run, lambda d: d["findings"][0].update(message=EVIL, cause=EVIL))
    path = write(dumps, title=EVIL)
    found = parsed(path)
    assert "img" not in {name for name, _ in found.elements}
    assert len(found.texts["script"]) == 2
    assert "alert(1)" not in " ".join(found.texts["script"])
    assert "\u2028" not in path.read_text()
    assert "<img src=x onerror=alert(2)>" in " ".join(found.words)


def test_chunks_hold_lines_without_locations_and_their_python_lines(
    dumps: Path, write: Write
) -> None:
    path = write(dumps)
    index = inflated(path, "index")
    kernel = next(k for k in index["kernels"] if k["name"] == "double")
    assert kernel["targets"] == ["v5e"]
    own, of_target, of_schedule = kernel["chunks"]
    assert of_schedule["names"] == ["bundles"]
    assert own["names"] == ["jaxpr"]
    assert of_target["names"][:3] == ["stablehlo", "mosaic", "00-deserialization"]
    chunk = inflated(path, own["id"])
    assert "o_ref[...] = x_ref[...] + x_ref[...]" in chunk["source"]
    assert chunk["notes"] == [
        [10, "finding", "OutOfBoundsRead: x_ref[32:40, 0:128] reaches 8 rows past x_ref"],
        [10, "finding", "try: divide the rows by the rows of a block"],
    ]
    chunk = inflated(path, of_target["id"])
    text = next(t for t in chunk["texts"] if t["name"] == "12-apply-vector-layout")
    assert " loc(" not in text["text"]
    numbers = text["chains"]
    assert sum(numbers[1::2]) == len(text["text"].split("\n"))
    places = {
        (chunk["files"][chunk["chains"][n][0]], chunk["chains"][n][1])
        for n in numbers[::2]
        if n >= 0
    }
    assert any(line == 10 for _, line in places)


def test_what_is_missing_or_damaged_is_named(dumps: Path, write: Write) -> None:
    text = dumps / DOUBLE / "v5e" / "passes" / "12-apply-vector-layout.mlir"
    text.write_text("cut short")
    (dumps / DOUBLE / "jaxpr.txt").unlink()
    (dumps / "unaligned-00bb54cf" / "kernel.json").write_text("{")
    path = write(dumps)
    words = " ".join(parsed(path).words)
    assert "unreadable" in words
    assert "kernel.json" in words
    index = inflated(path, "index")
    kernel = next(k for k in index["kernels"] if k["name"] == "double")
    own, of_target, _ = (inflated(path, chunk["id"]) for chunk in kernel["chunks"])
    assert "there is no" in own["texts"][0]["problem"]
    damaged = next(t for t in of_target["texts"] if t["name"] == "12-apply-vector-layout")
    assert "is damaged: it has 9 bytes" in damaged["problem"]


def test_a_page_is_the_same_each_time(write: Write) -> None:
    assert write().read_bytes() == write().read_bytes()


def test_a_failed_compilation_has_no_empty_figures(dumps: Path, write: Write) -> None:
    schedule = dumps / "unaligned-00bb54cf" / "v5e" / "schedule"
    schedule.mkdir()
    (schedule / "hlo.txt").write_text("")
    shutil.rmtree(dumps / DOUBLE)
    page = write(dumps).read_text()
    assert "the listing contains no bundle" not in page
    assert "pd-figures" not in page.partition("</style>")[2].partition('<script type="text')[0]


def test_the_page_is_opened_in_a_browser(command: Run, tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    browser.chmod(0o700)
    done = command("report", DUMPS, "--open", BROWSER=str(browser))
    assert done.stderr == f"next: pallas-debug explain {DUMPS}/running-cc4e5499\n"
    assert (tmp_path / "opened").read_text() == f"{(tmp_path / 'report.html').as_uri()}\n"


def test_without_a_display_the_page_is_named(command: Run, tmp_path: Path) -> None:
    done = command("report", DUMPS, "--open", BROWSER="", DISPLAY="", WAYLAND_DISPLAY="")
    path = tmp_path / "report.html"
    assert path.is_file()
    assert f"pallas-debug: there is no display for a browser; open {path}\n" in done.stderr


def test_a_third_directory_is_refused(command: Run) -> None:
    done = command("report", DUMPS, DUMPS, DUMPS)
    assert done.returncode == Exit.USAGE
    assert "report takes two directories at most, OLD and NEW, not 3" in done.stderr
