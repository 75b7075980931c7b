"""The base installation, which has no jax: every command, `import pallas_debug`, and pytest."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

import pytest
from jaxless import declared, distributions, run

import pallas_debug
from pallas_debug import installed
from pallas_debug.cli.group import COMMANDS
from pallas_debug.errors import CannotRunError, MissingJaxError

REMEDY = "pip install 'pallas-debug[tpu]'"
MISSING = f"needs jax, and jax is not installed. To install it: {REMEDY}"


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import jax
    import jax.numpy as jnp
    from pallas_debug_kernels import vector_add

    root = tmp_path_factory.mktemp("without_jax")
    x = jax.ShapeDtypeStruct((1024,), jnp.float32)
    pallas_debug.dump(vector_add, x, x, to=root / "dumps")
    return root


READ = {
    "ls": (["dumps"], "vector_add-"),
    "show": (["dumps", "mosaic"], "func.func @"),
    "diff": (["dumps", "mosaic", "finalize-llo", "--ignore=all"], "--- vector_add-"),
    "grep": (["vector", "dumps"], "finalize-llo.mlir:"),
    "source": (["dumps"], "kernel.py"),
    "stats": (["dumps"], "vector_add on v5e"),
    "timeline": (["dumps"], "vector_add on v5e"),
    "report": (["dumps", "-o", "report.html"], ""),
    "explain": (["E1001"], "scoped-vmem-overflow"),
    "reproduce": (["dumps"], "import jax\n"),
    "doctor": (["--targets"], "v5e\t"),
}
"""Commands that need no jax: their arguments, and part of what they print."""

REFUSED = {
    "dump": ["rows:shift"],
    "verify": ["rows:shift"],
    "step": ["rows:shift"],
    "sweep": ["rows:shift", "--over", "rows=8"],
}
"""Commands that need jax, and arguments."""

ELSEWHERE = {"browse", "help"}
"""Commands with tests of their own, in `tui/test_terminal.py` and `cli/test_help.py`."""


def test_no_declared_dependency_brings_jax() -> None:
    assert not {"jax", "jaxlib", "libtpu"} & {name.lower() for name in distributions(declared())}
    assert not {"jax", "jaxlib"} & {name.lower() for name in distributions(declared("pytest"))}


@pytest.mark.slow
def test_every_command(jaxless: Path, dumped: Path) -> None:
    assert {*READ, *REFUSED, *ELSEWHERE} == {*COMMANDS}
    lines = {name: [name, *arguments] for name, (arguments, _) in READ.items()}
    lines |= {name: [name, *arguments] for name, arguments in REFUSED.items()}
    lines["--shrink"] = ["reproduce", "rows:shift", "--shrink"]
    lines["--kernels"] = ["doctor", "--kernels"]
    with ThreadPoolExecutor(2) as threads:
        ran = {
            name: threads.submit(run, jaxless, dumped, "-m", "pallas_debug", *words)
            for name, words in lines.items()
        }
    done = {name: future.result() for name, future in ran.items()}
    for name, (_, part) in READ.items():
        assert done[name].returncode == 0, name
        assert all(line.startswith("next: ") for line in done[name].stderr.splitlines()), name
        assert part in done[name].stdout, name
    for name in REFUSED:
        message = f"pallas-debug: `{name}` {MISSING}\n"
        assert (done[name].returncode, done[name].stderr, done[name].stdout) == (3, message, "")
    message = f"pallas-debug: `doctor --kernels` {MISSING}\n"
    kernels = done["--kernels"]
    assert (kernels.returncode, kernels.stderr, kernels.stdout) == (3, message, "")
    assert done["--shrink"].returncode == 3
    assert done["--shrink"].stderr == f"pallas-debug: `reproduce` of a function {MISSING}\n"


def test_the_doctor_says_what_is_missing(jaxless: Path, tmp_path: Path) -> None:
    done = run(jaxless, tmp_path, "-m", "pallas_debug", "doctor")
    assert done.returncode == 3
    assert done.stderr == "next: pallas-debug doctor -v\n"
    lines = done.stdout.splitlines()
    missing = "jax is not installed: kernels cannot be compiled, checked or interpreted here"
    at = lines.index(f"failed   jax: {missing}")
    assert lines[at + 1 :] == [
        f"         → {REMEDY}",
        "failed   libtpu: not installed, so nothing can be compiled",
        f"         → {REMEDY}",
        "ok       dumps: can be read and browsed without jax",
        *(line for line in lines[-1:] if "-v prints" in line),
    ]


CODE = """
import pallas_debug
from pallas_debug import explain, open_dumps

print(open_dumps("dumps").kernels()[0].kernel.name)
for name in ("check", "compile", "debug", "dump", "interpret", "verify"):
    try:
        getattr(pallas_debug, name)
    except ImportError as error:
        print(type(error).__name__, error)
try:
    import pallas_debug.checkify
except ImportError as error:
    print(error)
@pallas_debug.debug
def attention(): ...
"""


@pytest.mark.slow
def test_import_in_user_code(jaxless: Path, dumped: Path) -> None:
    done = run(jaxless, dumped, "-c", CODE)
    names = ("check", "compile", "debug", "dump", "interpret", "verify")
    assert done.stdout.splitlines() == [
        "vector_add",
        *(f"MissingJaxError pallas_debug.{name} {MISSING}" for name in names),
        f"pallas_debug.checkify {MISSING}",
    ]
    assert (
        done.stderr.splitlines()[-1]
        == f"pallas_debug.errors.MissingJaxError: pallas_debug.debug {MISSING}"
    )


@pytest.mark.slow
def test_pytest(jaxless_pytest: Path, tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text("def test_plain(): pass\n")
    (tmp_path / "test_marked.py").write_text(
        "import pytest\n@pytest.mark.pallas(check=True)\ndef test_marked(): pass\n"
    )
    lines = {
        "plain": ["test_plain.py", "--pallas-target=v5e"],
        "option": ["test_plain.py", "--pallas-check"],
        "mode": ["test_plain.py", "--pallas-interpret=tpu,detect_races"],
        "marked": ["test_marked.py"],
    }
    with ThreadPoolExecutor(2) as threads:
        ran = {
            name: threads.submit(
                run, jaxless_pytest, tmp_path, "-m", "pytest", "-p", "no:cacheprovider", *words
            )
            for name, words in lines.items()
        }
    done = {name: future.result() for name, future in ran.items()}
    assert done["plain"].returncode == 0, done["plain"].stdout + done["plain"].stderr
    asked = "pallas-debug, for which an option, a marker or a fixture asks,"
    for name, subject in {
        "option": asked,
        "mode": "--pallas-interpret: 'tpu,detect_races'",
        "marked": asked,
    }.items():
        assert done[name].returncode == 4, name
        assert f"ERROR: {subject} {MISSING}\n" in done[name].stderr, name


@pytest.mark.parametrize(
    "missing,version,problem",
    [
        ({"jax", "jaxlib"}, None, "jax is not installed"),
        ({"jaxlib"}, "0.10.2", "jax 0.10.2 is installed without jaxlib"),
        ((), "0.9.2", "jax 0.9.2 is too old (0.10.2 or later is needed)"),
        ((), "0.10.2", None),
        ((), "0.11.0.dev20260101", None),
        ((), "1.0", None),
    ],
)
def test_a_jax_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, missing: set[str], version: str | None, problem: str | None
) -> None:
    monkeypatch.setattr(installed, "find_spec", lambda name: None if name in missing else object())
    monkeypatch.setattr(metadata, "version", lambda name: version)
    assert installed.jax_problem() == problem
    if problem is None:
        installed.require_jax("it")
        return
    with pytest.raises(MissingJaxError) as raised:
        installed.require_jax("it")
    assert str(raised.value) == f"it needs jax, and {problem}. To install it: {REMEDY}"
    assert isinstance(raised.value, CannotRunError)
