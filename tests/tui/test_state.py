"""State remembered between `browse` sessions, and crash reports."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from pallas_debug.tui import run, terminal
from pallas_debug.tui.model import state
from pallas_debug.tui.model.state import Spot, State
from pallas_debug.tui.terminal import UNTRUSTED


def test_the_state_comes_back_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "browse.json"
    spot = Spot(roots=("/a",), kernel="k", target="v5e", step="13 x", line=7, toggles={"t": True})
    wanted = State(theme="nord").with_spot(spot)
    assert state.save(file, wanted) is None
    assert state.load(file) == (wanted, None)
    assert [path.name for path in file.parent.iterdir()] == ["browse.json"]


def test_each_set_of_directories_has_its_place(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    kept = State()
    for roots, kernel in [([a], "one"), ([a, b], "two"), ([b, a], "three"), ([a], "four")]:
        kept = kept.with_spot(Spot(roots=tuple(map(str, roots)), kernel=kernel))
    kernels = [spot.kernel for roots in ([a], [a, b], [b, a]) if (spot := kept.spot(roots))]
    assert kernels == ["four", "two", "three"]
    assert kept.spot([b]) is None


def test_the_state_does_not_grow_for_ever() -> None:
    kept = State()
    for number in range(state.MAX_SPOTS + 5):
        kept = kept.with_spot(Spot(roots=(f"/{number}",)))
    assert len(kept.spots) == state.MAX_SPOTS
    assert kept.spots[-1].roots == (f"/{state.MAX_SPOTS + 4}",)
    assert kept.spots[0].roots == ("/5",)


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "is not a state file of browse and was ignored"),
        (b"{", "is not a state file of browse and was ignored"),
        (b"\xff\xfe", "is not a state file of browse and was ignored"),
        (b'{"spots": 3}', "is not a state file of browse and was ignored"),
        (b"[" * 100_000, "is not a state file of browse and was ignored"),
        (b'{"version": 2}', "belongs to another version of pallas-debug and was ignored"),
        (b" " * ((1 << 20) + 1), "is larger than 1,048,576 bytes and was ignored"),
    ],
)
def test_a_state_that_cannot_be_used_is_none(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "browse.json"
    file.write_bytes(content)
    assert state.load(file) == (State(), f"{file} {message}")


def test_a_state_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    file = tmp_path / "file" / "browse.json"
    assert state.save(file, State()) == f"{file} cannot be written: File exists"
    folder = tmp_path / "folder"
    folder.mkdir()
    assert state.save(folder, State()) == f"{folder} cannot be written: Is a directory"
    assert not list(tmp_path.glob(".folder-*"))


def test_a_report_says_what_happened_and_where(tmp_path: Path) -> None:
    try:
        raise ValueError("\udc80 odd")
    except ValueError as error:
        fault = error
    file = run.write_report(fault, tmp_path / "state", size=(80, 24))
    text = file.read_text(errors="replace")
    for wanted in ("ValueError", "test_a_report_says", "textual ", "terminal: 80 x 24"):
        assert wanted in text
    assert run.crash_message(fault, file) == (
        f"internal error in browse (ValueError); the report is {file}"
    )
    assert run.crash_message(fault, None).endswith("; no report could be written")


def test_reports_are_not_kept_for_ever(tmp_path: Path) -> None:
    for number in range(run.MAX_REPORTS + 3):
        (tmp_path / f"browse-crash-2000010{number:02}.txt").write_text("")
    file = run.write_report(ValueError(), tmp_path, size=(1, 1))
    assert file.is_file()
    assert len(list(tmp_path.iterdir())) == run.MAX_REPORTS


def test_a_report_goes_elsewhere_where_its_folder_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    assert run.write_report(ValueError(), tmp_path / "file", size=(1, 1)).parent == tmp_path
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "file"))
    with pytest.raises(OSError, match="can be written"):
        run.write_report(ValueError(), tmp_path / "file", size=(1, 1))


@pytest.mark.parametrize(
    "words, command",
    [
        (["vi"], ["vi", "+7", "--", "/d/f.py"]),
        (["vim"], ["vim", *UNTRUSTED, "+7", "--", "/d/f.py"]),
        (["/usr/bin/nvim", "-R"], ["/usr/bin/nvim", "-R", *UNTRUSTED, "+7", "--", "/d/f.py"]),
        (["emacs", "-nw"], ["emacs", "-nw", "+7", "/d/f.py"]),
        (["nano"], ["nano", "+7", "/d/f.py"]),
        (["kak"], ["kak", "+7", "/d/f.py"]),
        (["code", "--wait"], ["code", "--wait", "--goto", "/d/f.py:7"]),
        (["hx"], ["hx", "/d/f.py:7"]),
        (["kate"], ["kate", "--line", "7", "/d/f.py"]),
        (["ed"], ["ed", "/d/f.py"]),
    ],
)
def test_how_editors_are_told_the_line(words: list[str], command: list[str]) -> None:
    assert terminal.edit_command(words, Path("/d/f.py"), 7) == command
    assert terminal.takes_line(words) == (words != ["ed"])


@pytest.mark.parametrize("name", ["-c quit", "+!touch X;echo ", "--", "+1", "a:3", "@x"])
@pytest.mark.parametrize("program", ["vim", "vi", "emacs", "nano", "code", "hx", "kate", "ed"])
def test_a_file_is_neither_an_option_nor_a_command(
    program: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    *_, last = terminal.edit_command([program], Path(name), 1)
    assert Path(last.removesuffix(":1")) == tmp_path / name
    assert last.startswith("/")


@pytest.mark.parametrize("program", ["code", "hx"])
def test_a_path_with_a_colon_is_opened_at_its_beginning(program: str) -> None:
    """The editor would take `/d/a:3` for line 3 of `/d/a`."""
    assert terminal.edit_command([program], Path("/d/a:3"), 7) == [program, "/d/a:3"]


def test_an_editor_does_not_start_in_a_dump(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dumps" / "k").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "dumps")
    monkeypatch.chdir(tmp_path)
    assert terminal.edit_directory([Path("dumps")]) is None
    monkeypatch.chdir(tmp_path / "dumps" / "k")
    assert terminal.edit_directory([tmp_path / "link"]) == Path.home()
    assert terminal.edit_directory([Path()]) == Path.home()


@pytest.mark.skipif(shutil.which("vim") is None, reason="vim is not installed")
def test_a_real_vim_obeys_neither_the_name_of_a_folder_nor_a_modeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "+!touch X;echo "
    folder.mkdir()
    (folder / "text").write_text("one\ntwo\n# vim: set shiftwidth=7 :\n")
    monkeypatch.chdir(tmp_path)
    written = tmp_path / "told"
    report = f"call writefile([line('.'), &shiftwidth, expand('%:p')], '{written}')"
    options = ["vim", "-es", "-u", "NONE", "--cmd", "set modeline", "-c", report, "-c", "qa!"]
    command = terminal.edit_command(options, Path("+!touch X;echo ") / "text", 2)
    subprocess.run(command, stdin=subprocess.DEVNULL, timeout=60, check=False)
    # `-c` and `+` run in their order: the cursor is still on the last line for the first.
    _, width, path = written.read_text().splitlines()
    assert (width, path) == ("8", str(folder / "text"))
    assert not (tmp_path / "X").exists()


def test_a_pager_that_ends_early_is_no_problem() -> None:
    lines = (b"x" * 1000 + b"\n" for _ in range(100_000))
    assert terminal.pipe(["head", "-n0"], lines) is None
    assert next(lines), "not all was read"
    assert terminal.pipe(["false"], [b""]) == "false exited with 1"
    assert terminal.pipe(["/nowhere/less"], [b""]) == (
        "/nowhere/less cannot be run: No such file or directory"
    )
    assert terminal.pager({}) == ["less", "-R"]
    assert terminal.pager({"PAGER": "more -d"}) == ["more", "-d"]


def test_what_is_copied_goes_through_tmux_and_screen() -> None:
    plain = "\x1b]52;c;w6k=\a"
    assert terminal.copy_sequences("é", {}) == [plain]
    assert terminal.copy_sequences("é", {"TMUX": "/tmp/x,1,0"}) == [
        plain,
        "\x1bPtmux;\x1b\x1b]52;c;w6k=\a\x1b\\",
    ]
    (wrapped,) = terminal.copy_sequences("x" * 600, {"STY": "1.pts"})
    chunks = wrapped.removeprefix("\x1bP").removesuffix("\x1b\\").split("\x1b\\\x1bP")
    assert len(chunks) == 4
    assert "".join(chunks) == terminal.copy_sequences("x" * 600, {})[0]
    assert terminal.copy_sequences("\udc80", {}) == ["\x1b]52;c;Pw==\a"]


def test_no_more_is_copied_than_a_terminal_takes() -> None:
    line = "é" * 1000
    text, count = terminal.fitting([line] * 100)
    assert count == 37
    assert len(text.encode()) <= terminal.MAX_COPY < len(text.encode()) + 2001
    assert terminal.fitting(["é" * 50_000, "x"]) == ("é" * (terminal.MAX_COPY // 2), 1)
    assert terminal.fitting(["a", "b"]) == ("a\nb", 2)
    assert len(terminal.copy_sequences("x" * terminal.MAX_COPY, {})[0]) <= 100_000


def test_the_platform_s_directories_are_honoured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state.path() == tmp_path / "pallas-debug" / "browse.json"
    assert os.fspath(state.directory()) == str(tmp_path / "pallas-debug")
