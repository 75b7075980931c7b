"""Reader and judge of mutated dumps: `python read_mutants.py MODE SEED FIRST COUNT WORK`.

Each mutant is read in a child process, by every reading command or by the real Textual app. An
audit hook sees what is opened, written and started. A violation is printed as a line of JSON with
the seed, the mutant's number and its mutations; the last line has the counts.
"""

from __future__ import annotations

import base64
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from mutants import EXECUTED, SECRET, Mutant

ORIGINAL = HERE.parent / "tui" / "data" / "dumps"
SECONDS = 5
"""Seconds of processor time that a command or key may take; waiting may take `WAIT`."""

WAIT = 40
COMMANDS = 8
"""Commands that each mutant is read by, chosen by its seed."""

MEMORY = 6 << 30
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
_OURS = "please report it"
_FOLDERS = (sys.prefix, sys.base_prefix, HERE.parents[1])
_OF_THE_SYSTEM = ("/usr/lib", "/usr/share", "/lib", "/etc/terminfo", "/sys")
ALLOWED = tuple(str(Path(p).resolve()) for p in (*_FOLDERS, *_OF_THE_SYSTEM))
EXACTLY = ("/dev/null", "/dev/tty", "/etc/localtime", "/etc/ld.so.cache", "/etc/os-release")
STARTS = (
    *("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "os.spawn", "os.fork"),
    "pty.spawn",
)
WRITES = (
    *("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate"),
    *("os.chmod", "os.chown", "os.utime", "shutil.rmtree", "shutil.move", "socket.connect"),
    *("socket.bind", "shutil.copyfile", "tempfile.mkstemp", "tempfile.mkdtemp", "os.mkfifo"),
)


class Hang(BaseException):
    """A command that takes too long."""


class Watch:
    """What the process does from now on that it must not do."""

    def __init__(self, root: Path, scratch: Path) -> None:
        self.root, self.scratch = str(root.resolve()), str(scratch.resolve())
        self.found: list[str] = []
        self.is_on = False
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_on:
            return
        self.is_on = False
        try:
            if event == "open":
                self._opened(*arguments)
            elif event in WRITES or event.startswith(STARTS):
                if not str(arguments[0]).startswith(self.scratch):
                    self.found.append(f"{event} {arguments!r:.200}")
            elif event == "exec" and EXECUTED in repr(getattr(arguments[0], "co_names", "")):
                self.found.append(f"executed code of the dump: {arguments!r:.100}")
        finally:
            self.is_on = True

    def _opened(self, path: object, mode: object, flags: int) -> None:
        if isinstance(path, int):
            return
        name = os.fsdecode(path)  # type: ignore[arg-type]
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        # Relative to a folder that was opened before, and no link is followed.
        if "/" not in name and name not in ("..", "") and flags & os.O_NOFOLLOW and not writes:
            return
        real = os.path.realpath(name)
        if real.startswith(self.scratch) or real in EXACTLY or real.startswith("/proc/"):
            if "environ" in real:
                self.found.append(f"opened {real}")
            return
        if writes:
            self.found.append(f"opened {real!r} to write")
        elif real.startswith((f"{self.root}/", *ALLOWED)) or real == self.root:
            return
        else:
            self.found.append(f"opened {real!r}")


class Terminal(TextIOWrapper):
    """A stream that says it is a terminal."""

    def __init__(self) -> None:
        self.bytes = BytesIO()
        super().__init__(self.bytes, encoding="utf-8", write_through=True)

    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        self.flush()
        return self.bytes.getvalue().decode("utf-8", "surrogateescape")


def commands(root: Path, json_too: bool) -> Iterator[list[str]]:
    """Every reading command, at the whole dump and at what is in it."""
    where = os.fspath(root)
    kernels = sorted(e.name for e in os.scandir(root) if _is_folder(e)) if root.is_dir() else []
    kernels = [k for k in kernels if k != "runs"][:5]
    yield ["ls", where]
    yield ["ls", where, "-t", "v5e"]
    yield ["grep", "arith", where]
    yield ["grep", "-c", "-i", "vector", where]
    yield ["explain", where]
    yield ["browse", where]
    for kernel in kernels:
        folder = os.path.join(where, kernel)
        yield ["show", where, "-k", kernel]
        if os.path.islink(folder):  # the directory that is named may lie anywhere
            yield ["show", where, "jaxpr", "-k", kernel]
            yield ["diff", where, "-k", kernel]
            continue
        yield ["ls", where, "-k", kernel, "-a"]
        for stage in ("source", "jaxpr", "mosaic", "stablehlo", "log", "error", "0", "12", "final"):
            yield ["show", folder, stage]
        yield ["diff", folder]
        yield ["diff", folder, "5", "-i", "all"]
        yield ["diff", folder, "mosaic", "2", "-s"]
        yield ["source", folder]
        yield ["source", folder, "-n", "9"]
        yield ["grep", "x", folder, "-p", "log"]
        log = os.path.join(folder, "v5e", "compiler.log")
        if os.path.realpath(log).startswith(os.path.realpath(where)):  # what is named may be a link
            yield ["explain", log]
        yield ["reproduce", folder, "-t", "v5e"]
        if json_too:
            yield ["show", folder, "12", "--json"]
            yield ["show", folder, "error", "--json"]
            yield ["diff", folder, "--json"]
            yield ["source", folder, "--json"]
    if json_too:
        yield ["ls", where, "--json"]
        yield ["grep", "arith", where, "--json"]
        yield ["explain", where, "--json"]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def run_commands(mutant: Mutant, number: int, scratch: Path) -> list[str]:
    """What is wrong with what the commands do."""
    from pallas_debug.cli.group import cli
    from pallas_debug.cli.guard import guarded

    colored = number % 2
    os.environ["TERM"] = "xterm-256color" if colored else "dumb"
    found: list[str] = []
    watch = Watch(mutant.root, scratch)
    page = scratch / "report.html"
    listed = list(commands(mutant.root, json_too=number % 3 == 0))
    listed.append(["report", os.fspath(mutant.root), "-o", os.fspath(page)])
    listed = mutant.random.sample(listed, min(len(listed), COMMANDS))
    for words in listed:
        out, err = Terminal(), Terminal()
        sys.stdout, sys.stderr, sys.argv = out, err, ["pallas-debug", *words]
        sys.stdin = TextIOWrapper(BytesIO())
        code: object = None
        crash = ""
        limit(SECONDS)
        watch.is_on = True
        try:
            guarded(cli)
        except SystemExit as ended:
            code = ended.code
        except Hang:
            crash = f"hang: {traceback.format_exc()[-900:]}"
        except BaseException:
            crash = f"traceback: {traceback.format_exc()[-900:]}"
        finally:
            watch.is_on = False
            limit(0)
            sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        messages = [*judge(words, code, crash, out.text(), err.text(), bool(colored))]
        if words[0] == "report":
            messages += judge_page(page)
        found += [f"{words}: {problem}" for problem in [*messages, *watch.found]]
        watch.found.clear()
    return found


def judge(
    words: list[str], code: object, crash: str, out: str, err: str, colored: bool
) -> Iterator[str]:
    if crash:
        yield crash
        return
    if code not in (0, 1, 2, 3):
        yield f"exit code {code}"
    if code in (2, 3) and not err.strip():
        yield f"exit code {code} without a sentence"
    if _OURS in err or "Traceback (most" in err or "Traceback (most" in out:
        yield f"an error of ours: {err[-900:]}"
    for name, text in (("output", out), ("errors", err)):
        seen = _STYLE.sub("", text) if colored else text
        if raw := _UNSAFE.search(seen):
            yield f"raw {raw[0]!r} in {name}: {seen[max(raw.start() - 80, 0) : raw.end() + 20]!r}"
        if (SECRET in text and words[0] != "show") or (
            SECRET in text and f"'{SECRET}'" not in text
        ):
            yield f"content of a file outside in {name}"
    if "--json" in words and code == 0:
        try:
            json.loads(out)
        except ValueError as error:
            yield f"no JSON: {error}"


def judge_page(page: Path) -> Iterator[str]:
    """What is wrong with a report; a kernel's own texts may name the secret in their source."""
    if not page.exists():
        return
    text = page.read_text()
    page.unlink()
    if len(re.findall(r"<script(?! type=\"text/plain\")", text)) != 2:
        yield "a script of the dump is in the page"
    if raw := _UNSAFE.search(text.replace("\r", "")):
        yield f"raw {raw[0]!r} in the page"
    for block in re.findall(r'<script type="text/plain" id="[^"]*">([^<]*)</script>', text):
        if SECRET.encode() in zlib.decompress(base64.b64decode(block), -15):
            yield "content of a file outside in the page"


KEYS = (
    *("j", "k", "enter", "right_curly_bracket", "left_square_bracket", "tab", "slash", "a", "r"),
    *("enter", "n", "escape", "d", "i", "s", "greater_than_sign", "d", "o", "j", "tab", "R"),
    "escape",
    *("w", "L", "u", "escape", "ctrl+g", "v", "e", "enter", "escape", "colon", "9"),
    *("enter", "question_mark", "escape", "y", "E", "e", "t", "j", "x", "X", "ctrl+p"),
    *("g", "o", "escape", "f", "o", "enter", "D"),
)


def run_app(mutant: Mutant, number: int, scratch: Path) -> list[str]:
    """What is wrong with what the app does."""
    import asyncio

    from pallas_debug.tui.app import BrowseApp
    from pallas_debug.tui.model.browser import Browser

    os.environ["TERM"] = "xterm-256color"
    os.environ["EDITOR"] = "no-such-editor"
    found: list[str] = []
    watch = Watch(mutant.root, scratch)
    keys = [*KEYS[:9], *mutant.random.sample(KEYS, 20)]
    slowest = 0.0

    async def drive() -> None:
        nonlocal slowest
        browser = Browser(mutant.root)
        app = BrowseApp(browser)
        async with app.run_test(size=(140, 40)) as pilot:
            for key in ["", *keys]:
                began = time.process_time()
                limit(2 * SECONDS)
                if key and key != "q":
                    await pilot.press(key)
                await pilot.pause()
                limit(0)
                slowest = max(slowest, time.process_time() - began)
                strips = app.screen._compositor.render_strips()
                text = "\n".join("".join(s.text for s in strip) for strip in strips)
                if raw := _UNSAFE.search(text):
                    found.append(f"{key}: raw {raw[0]!r}")
                if SECRET in text:
                    found.append(f"{key}: content of a file outside is shown")
                if app.fault is not None:
                    raise app.fault
            app.workers.cancel_all()
            app.exit()

    watch.is_on = True
    try:
        asyncio.run(drive())
    except Hang:
        found.append(f"hang: {traceback.format_exc()[-900:]}")
    except BaseException as error:
        from pallas_debug.errors import PallasDebugError

        if not isinstance(error, PallasDebugError):
            found.append(f"traceback: {traceback.format_exc()[-1500:]}")
    finally:
        watch.is_on = False
        limit(0)
    if slowest > SECONDS:
        found.append(f"a key took {slowest:.1f} s")
    return [*found, *watch.found]


def judged(
    run: Callable[[Mutant, int, Path], list[str]], seed: int, number: int, work: Path
) -> list[str]:
    """The violations of one mutant, found in a child process."""
    where = work / f"{number}"
    ours, theirs = os.pipe()
    mutant = Mutant(ORIGINAL, where, seed, number)
    child = os.fork()
    if child == 0:
        os.close(ours)
        signal.signal(signal.SIGALRM, _hang)
        signal.signal(signal.SIGPROF, _hang)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        (where / "cwd").mkdir()
        os.chdir(where / "cwd")
        os.environ["HOME"] = str(where / "cwd")
        os.environ.pop("VISUAL", None)
        tempfile.tempdir = str(where / "cwd")  # copies for an editor
        try:
            found = run(mutant, number, where / "cwd")
        except BaseException:
            found = [f"the harness: {traceback.format_exc()[-1500:]}"]
        with os.fdopen(theirs, "wb") as pipe:
            pipe.write(json.dumps(found).encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    found = json.loads(data) if data else [f"the process ended with {status}"]
    shutil.rmtree(where, ignore_errors=True)
    return [f"{problem}\n    mutations: {mutant.done}" for problem in found]


def limit(seconds: int) -> None:
    """Raise `Hang` after so many seconds of processor time, or of waiting; 0 takes it back."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.alarm(WAIT if seconds else 0)


def _hang(*_: object) -> None:
    raise Hang


def main(mode: str, seed: str, first: str, count: str, work: str) -> None:
    preload(mode)
    run = run_app if mode == "app" else run_commands
    bad = 0
    for number in range(int(first), int(first) + int(count)):
        found = judged(run, int(seed), number, Path(work))
        bad += bool(found)
        for problem in found:
            print(
                json.dumps({"mode": mode, "seed": int(seed), "number": number, "problem": problem})
            )
        sys.stdout.flush()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = usage.ru_utime + usage.ru_stime + time.process_time()
    print(json.dumps({"mutants": int(count), "bad": bad, "cpu": round(cpu, 1)}))


def preload(mode: str) -> None:
    """Import once what every child needs."""

    from pallas_debug.cli.group import COMMANDS, cli

    for name in COMMANDS:
        cli.get_command(None, name)  # type: ignore[arg-type]

    assert mode in ("app", "commands")


if __name__ == "__main__":
    main(*sys.argv[1:])
