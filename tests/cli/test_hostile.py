"""Hostile dumps and names for every command, on a pipe and in a real terminal."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from tmux import Tmux

from pallas_debug.cli import guard, output

DUMPS = Path(__file__).parents[1] / "tui" / "data" / "dumps"
DOUBLE = "double-40afca47"
NAME = "k\x1b[2J\x9b\u202e"


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    shutil.copytree(DUMPS, tmp_path / "dumps")
    return tmp_path / "dumps"


def manifest(dumps: Path, change: Any) -> None:
    path = dumps / DOUBLE / "v5e" / "compilation.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize("words", [["show", "12"], ["diff", "12"], ["source", "-p", "12"]])
@pytest.mark.parametrize("file", ["../../../secret", "/etc/hostname", "a\0b"])
def test_a_manifest_that_names_a_file_elsewhere(
    command: Any, dumps: Path, words: list[str], file: str
) -> None:
    (dumps.parent / "secret").write_text("SECRET")
    manifest(dumps, lambda d: d["passes"][12].update(file=file))
    done = command(words[0], dumps / DOUBLE, *words[1:])
    assert (done.returncode, done.stdout) == (3, "")
    assert "which is not a path below its own folder: the manifest was edited" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words,code",
    [
        (["show", "12"], 3),
        (["diff", "12"], 3),
        (["source", "-p", "12"], 3),
        (["grep", "SECRET"], 3),
    ],
)
def test_a_pass_that_is_a_link_out_of_the_dump(
    command: Any, dumps: Path, words: list[str], code: int
) -> None:
    (dumps.parent / "secret").write_text("SECRET")
    path = dumps / DOUBLE / "v5e" / "passes" / "12-apply-vector-layout.mlir"
    path.unlink()
    path.symlink_to("../../../../secret")
    where = [dumps / DOUBLE]
    arguments = [words[1], *where] if words[0] == "grep" else [*where, *words[1:]]
    done = command(words[0], *arguments)
    assert done.returncode == code
    assert f"{path} was not read: it is a link, or lies below one, that leads out" in done.stderr
    assert "SECRET" not in done.stdout


def test_a_damaged_pass_is_named(command: Any, dumps: Path) -> None:
    path = dumps / DOUBLE / "v5e" / "passes" / "12-apply-vector-layout.mlir"
    path.write_bytes(path.read_bytes()[:-1])
    for words in (["show", dumps / DOUBLE, "12"], ["diff", dumps / DOUBLE, "12"]):
        done = command(*words)
        assert (done.returncode, done.stdout) == (3, "")
        assert f"{path} is damaged: it has " in done.stderr
    done = command("ls", dumps, "-k", DOUBLE)
    assert done.returncode == 3
    assert f"{path} is damaged: it has " in done.stderr


def test_an_unreadable_kernel_has_no_summary_and_no_error(command: Any, dumps: Path) -> None:
    (dumps / DOUBLE / "kernel.json").write_text("{")
    (dumps / DOUBLE / "v5e" / "compilation.json").write_text("{")
    for stage in ("summary", "error", "12"):
        done = command("show", dumps / DOUBLE, stage)
        assert (done.returncode, done.stdout) == (3, "")
        assert "is truncated or not valid JSON" in done.stderr
    assert "failed: cannot be read" in command("ls", dumps).stdout


def test_a_failure_at_a_line_before_the_first(command: Any, dumps: Path) -> None:
    path = next(dumps.glob("unaligned-*")) / "v5e" / "compilation.json"
    document = json.loads(path.read_text())
    document["failure"]["source"] = {"file": "f.py", "line": -(10**6)}
    path.write_text(json.dumps(document))
    done = command("show", path.parent, "error")
    assert (done.returncode, done.stdout) == (3, "")
    assert "`failure.source.line` is -1000000, which is not between 0 and" in done.stderr


def test_names_are_escaped_in_json(command: Any, dumps: Path) -> None:
    (dumps / DOUBLE).rename(dumps / NAME)
    (dumps / "running-cc4e5499").rename(dumps / "\udcff\udcfe")
    done = command("ls", dumps, "--json")
    assert done.returncode == 0
    assert all(c.isprintable() or c == "\n" for c in done.stdout)
    names = [kernel["name"] for kernel in json.loads(done.stdout)["kernels"]]
    assert NAME in names
    assert "\udcff\udcfe" in names
    assert command("ls", dumps).returncode == 0


def test_json_escapes_what_a_terminal_obeys_or_hides() -> None:
    odd = "".join(map(chr, (*range(0x20), *range(0x7F, 0xA0), *range(0x2066, 0x206A)))) + "\u202e"
    text = output.json_text({odd: [odd, "é\U000e0001\ud800"]}).decode()
    assert all(c.isprintable() or c == "\n" for c in text)
    assert "é" in text
    assert json.loads(text) == {odd: [odd, "é\U000e0001\ud800"]}


@pytest.mark.parametrize(
    "text,escaped",
    [
        ("a\tb\nc", "a\tb\nc"),
        ("\x1b[2J\x07\r\x7f", "\\x1b[2J\\x07\\r\\x7f"),
        ("\x85\x9b", "\\x85\\x9b"),
        ("\u202e\u2066\u200f\u061c\u200b\ufeff", "\\u202e\\u2066\\u200f\\u061c\\u200b\\ufeff"),
        ("\udcff\ud800\U000e0001", "\\udcff\\ud800\\U000e0001"),
        ("é漢🙂", "é漢🙂"),
    ],
)
def test_what_is_visible(text: str, escaped: str) -> None:
    assert output.visible(text) == escaped


@pytest.mark.parametrize(
    "error,message",
    [
        (RecursionError("too deep"), "internal error in pallas-debug while running the command"),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "no"), "internal error in pallas-debug"),
        (ValueError("a\x1b[2J" + "x" * 1000), "internal error in pallas-debug"),
        (MemoryError(), "running the command failed: the machine is out of memory. Free some"),
        (PermissionError(13, "Permission denied", "f\x1b"), "f\\x1b: Permission denied. If the"),
        (click.UsageError("no \x07 option"), "Error: no \\x07 option"),
    ],
)
def test_every_exception_is_a_sentence(
    error: Exception,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(guard.TRACEBACK, raising=False)

    @click.command()
    def raising() -> None:
        raise error

    monkeypatch.setattr(sys, "argv", ["pallas-debug"])
    with pytest.raises(SystemExit) as ended:
        guard.guarded(raising)
    assert ended.value.code == (2 if isinstance(error, click.UsageError) else 3)
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown
    assert len(shown) < 700
    assert all(c.isprintable() or c == "\n" for c in shown)


def test_a_traceback_on_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command()
    def raising() -> None:
        raise ValueError("odd")

    monkeypatch.setenv(guard.TRACEBACK, "1")
    monkeypatch.setattr(sys, "argv", ["pallas-debug"])
    with pytest.raises(SystemExit):
        guard.guarded(raising)
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_a_log_of_one_long_word_is_read_in_time(command: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    words = ["_" * 200_000, "EXHAUSTED" * 20_000, "1" * 200_000, " " * 200_000, "A." * 100_000]
    log.write_text("".join(f"Mosaic failed to compile {w} Error: \n{w}\n" for w in words))
    began = os.times()
    assert command("explain", log).returncode in (0, 1)
    assert sum(os.times()[2:4]) - sum(began[2:4]) < 5


@pytest.mark.skipif(
    shutil.which("tmux") is None or shutil.which("vim") is None,
    reason="tmux or vim is not installed",
)
def test_a_hostile_folder_in_a_real_terminal(dumps: Path) -> None:
    """`show` writes the name escaped; `E` in browse has a real vim open it, and run nothing."""
    work = dumps.parent
    folder = "+!touch X;echo "
    (work / folder).mkdir()
    shutil.copytree(dumps / DOUBLE, work / folder / "k\x1b[2J-1")
    shutil.copytree(dumps / DOUBLE, work / folder / DOUBLE)
    tool = Path(sys.executable).with_name("pallas-debug")
    environment = ("-e", "EDITOR=vim -u NONE")
    with Tmux("-c", str(work), *environment, program="sh", columns=200, rows=50) as tmux:
        tmux.send(f"{tool} show '{folder}' x", "Enter")
        tmux.wait_for("k\\x1b[2J-1")
        tmux.send(f"clear; {tool} browse '{folder}' -k {DOUBLE} -p 12", "Enter")
        tmux.wait_for("apply-vector-layout", "module")
        tmux.send("E")
        tmux.wait_for('12-apply-vector-layout.mlir"')
        tmux.send(":q!", "Enter")
        tmux.wait_for("›")
        tmux.send("q")
    assert not list(work.rglob("X"))
