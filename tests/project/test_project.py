"""The distribution: contents of a wheel, modules loaded by an import, files in the tree."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from pallas_debug.installed import OLDEST_JAX

ROOT = Path(__file__).parents[2]
PACKAGES = {"pallas_debug", "pallas_debug_kernels", "pallas_debug_pytest"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = out.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.mark.slow
def test_the_wheel_installs_three_packages_and_nothing_beside(wheel: zipfile.ZipFile) -> None:
    top = {name.split("/")[0] for name in wheel.namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == PACKAGES


def test_the_wheel_holds_all_of_the_source(wheel: zipfile.ZipFile) -> None:
    expected = {
        str(path.relative_to(root))
        for root in (ROOT, ROOT / "kernels", ROOT / "pytest_plugin")
        for package in PACKAGES
        for path in (root / package).rglob("*")
        if path.suffix in (".py", ".js", ".css") or path.name == "py.typed"
    }
    assert expected <= set(wheel.namelist())
    assert "pallas_debug/report/static/app.js" in expected


def test_the_wheel_s_metadata(wheel: zipfile.ZipFile) -> None:
    (name,) = (n for n in wheel.namelist() if n.endswith("dist-info/METADATA"))
    metadata = wheel.read(name).decode()
    assert "Requires-Python: >=3.11" in metadata
    required = re.findall(r"^Requires-Dist: ([^;\n]*)$", metadata, re.MULTILINE)
    assert "numpy>=2.0" in required
    assert not [one for one in required if one.startswith("jax")], "jax is an extra"
    for extra in ("all", "tpu"):
        assert f"Requires-Dist: jax[tpu]>={OLDEST_JAX}; extra == '{extra}'\n" in metadata
    extras = re.findall(r"^Provides-Extra: (.*)$", metadata, re.MULTILINE)
    assert set(extras) == {"tpu", "gpu", "pytest", "remote", "search", "all", "docs", "dev"}
    assert "License-Expression: Apache-2.0" in metadata
    for field in ("Author: ", "Project-URL: ", "Classifier: Topic :: Software Development :: Test"):
        assert f"\n{field}" in metadata, field
    (name,) = (n for n in wheel.namelist() if n.endswith("entry_points.txt"))
    points = wheel.read(name).decode()
    assert "pallas-debug = pallas_debug.cli:console" in points
    assert "pallas_debug_pytest = pallas_debug_pytest" in points


@pytest.mark.slow
def test_the_sdist_can_be_tested_and_has_no_ci_files(tmp_path: Path, run_python: Any) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    (tree,) = (p for p in tmp_path.iterdir() if p.is_dir())
    assert {p.name for p in tree.iterdir()} >= {"Makefile", "docs", "benchmarks", "pyproject.toml"}
    assert not [p.name for p in tree.iterdir() if p.name.startswith((".ci", ".github", ".venv"))]
    left_out = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "tests").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    } - {str(file.relative_to(tree)) for file in tree.rglob("*")}
    assert not left_out
    tests = [
        tree / "tests" / "project" / "test_layout.py",
        tree / "tests" / "cli" / "test_colour.py",
    ]
    done = run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={tree}", *tests)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "code,absent",
    [
        ("import pallas_debug", {"jax", "numpy", "click", "rich", "pluggy", "msgspec", "textual"}),
        ("import pallas_debug.store", {"jax", "numpy", "click", "textual"}),
        (
            "import pallas_debug.compiler.pool, pallas_debug.compiler.targets",
            {"jax", "numpy", "textual"},
        ),
        ("import pallas_debug.cli.group", {"jax", "numpy", "rich", "msgspec", "textual"}),
        ("import pallas_debug_kernels", {"jax", "numpy", "pallas_debug"}),
        ("import pallas_debug_pytest", {"jax", "numpy", "pallas_debug", "click", "pluggy_"}),
    ],
)
def test_what_an_import_does_not_import(run_python: Any, code: str, absent: set[str]) -> None:
    done = run_python("-c", f"{code}\nimport sys; print(sorted({absent!r} & set(sys.modules)))")
    assert done.stdout == "[]\n", done.stdout + done.stderr


def test_the_public_names_are_there(run_python: Any) -> None:
    code = """
import pallas_debug
for name in pallas_debug.__all__:
    assert getattr(pallas_debug, name) is not None, name
assert set(pallas_debug.__all__) == set(dir(pallas_debug))
try:
    pallas_debug.nothing
except AttributeError as error:
    print(error)
"""
    done = run_python("-c", code)
    assert done.stdout == "module 'pallas_debug' has no attribute 'nothing'\n", done.stderr


@pytest.mark.slow
def test_every_warning_is_of_our_class() -> None:
    from pallas_debug import errors
    from pallas_debug.bridge.instrument.checkify_rule import UncheckedKernel

    ours = {
        name
        for name, kind in {**vars(errors), "UncheckedKernel": UncheckedKernel}.items()
        if isinstance(kind, type) and issubclass(kind, errors.PallasDebugWarning)
    }
    found = []
    for path in (*ROOT.glob("pallas_debug/**/*.py"), *ROOT.glob("pytest_plugin/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "warnings.warn":
                found.append(f"{path.name}: {ast.unparse(node.args[1]) if node.args[1:] else ''}")
    assert len(found) >= 2
    assert {one.rpartition(": ")[2] for one in found} <= ours, found


def test_only_the_room_of_findings_creates_findings() -> None:
    for path in (*ROOT.glob("pallas_debug/**/*.py"), *ROOT.glob("pytest_plugin/**/*.py")):
        if "findings" not in path.relative_to(ROOT).parts:
            assert not re.search(r"\bFinding\(", path.read_text()), path
