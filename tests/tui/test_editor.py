"""How the editor is started."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pallas_debug.tui import terminal
from pallas_debug.tui.terminal import UNTRUSTED


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
