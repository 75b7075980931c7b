"""Programs that `dump` and `verify` run: how they are named and imported, and how they fail."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from pallas_debug.cli import programs
from pallas_debug.errors import ProgramFailed, UsageError


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `outer.inner` with a module `kern`, which imports relatively."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    inner = tmp_path / "src" / "outer_package" / "inner"
    inner.mkdir(parents=True)
    for folder in (inner, inner.parent):
        (folder / "__init__.py").write_text("")
    (inner.parent / "scales.py").write_text("SCALE = 3\n")
    (inner / "kern.py").write_text(
        "from ..scales import SCALE\n"
        "def triple(x):\n    return x * SCALE\n"
        "class Layer:\n    @staticmethod\n    def call(x):\n        return x\n"
    )
    (tmp_path / "alone.py").write_text("import no_such_module_at_all\n")
    return inner


@pytest.mark.parametrize(
    "what,expected",
    [
        ("kern:f", ("kern", "f")),
        ("a.b.kern:Layer.call", ("a.b.kern", "Layer.call")),
        ("kern.py:f", ("kern.py", "f")),
        ("../src/my kernels/kern.py:f", ("../src/my kernels/kern.py", "f")),
        ("kern.py", None),
        ("kern.py:12", None),
        ("C:kern.txt:f", None),
    ],
)
def test_a_function_is_named_by_module_or_file(what: str, expected: object) -> None:
    assert programs.named_function(what) == expected


def test_a_file_of_a_package_is_imported_as_its_module(package: Path) -> None:
    function = programs.import_function("src/outer_package/inner/kern.py", "triple")
    assert function(2) == 6
    assert function.__module__ == "outer_package.inner.kern"
    assert programs.import_function(str(package / "kern.py"), "Layer.call")(1) == 1
    with pytest.raises(UsageError, match=r"kern.py has no 'tripel' \(did you mean 'triple'\?\)"):
        programs.import_function("src/outer_package/inner/kern.py", "tripel")
    with pytest.raises(UsageError, match=r"kern.py has no 'g'$"):
        programs.import_function("src/outer_package/inner/kern.py", "g")
    with pytest.raises(UsageError, match=r"no such file: .*kernn.py \(did you mean 'kern.py'\?\)"):
        programs.import_function("src/outer_package/inner/kernn.py", "triple")


def test_a_missing_import_of_the_module_is_the_program_s_own_failure(package: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):
        programs.import_function("alone", "f")
    with pytest.raises(UsageError, match=r"there is no module 'alnoe' \(did you mean 'alone'\?\)"):
        programs.import_function("alnoe", "f")


def test_a_module_that_calls_a_kernel_as_it_is_imported(package: Path) -> None:
    Path("calls_a_kernel.py").write_text(
        "import jax, jax.numpy as jnp\n"
        "from jax.experimental import pallas as pl\n"
        "def f(x):\n    return pl.pallas_call(lambda x, o: None, out_shape=x)(x)\n"
        "f(jnp.ones((8, 128)))\n"
    )
    with pytest.raises(ProgramFailed) as caught:
        programs.imported("calls_a_kernel", "f")
    text = str(caught.value)
    assert "raised ValueError when it was imported: Only interpret mode is supported on CPU" in text
    assert text.endswith(
        'A call that a module makes when it is imported belongs below `if __name__ == "__main__":`'
    )


def test_their_traceback_has_only_their_frames(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = package / "script.py"
    script.write_text(
        "import jax, jax.numpy as jnp\n"
        "def wrong(x):\n    return jnp.dot(x, jnp.ones((5, 5)))\n"
        "try:\n    jax.jit(wrong)(jnp.ones((3, 3)))\n"
        "except TypeError as error:\n    raise ValueError('outer') from error\n"
    )
    error = programs.execute(str(script), (), module=False)
    assert isinstance(error, ValueError)
    programs.print_their_traceback(error)
    output = capsys.readouterr().err
    assert set(re.findall(r'File "(.*?)"', output)) == {str(script)}
    assert "TypeError: " in output
    assert output.index("direct cause") < output.index("ValueError: outer")
    script.write_text("def f(:\n")
    error = programs.execute(str(script), (), module=False)
    assert error is not None
    programs.print_their_traceback(error)
    output = capsys.readouterr().err
    assert set(re.findall(r'File "(.*?)"', output)) == {str(script)}
    assert output.rstrip().splitlines()[-1].startswith("SyntaxError: ")
