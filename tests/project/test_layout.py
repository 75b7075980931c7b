"""The layout of the source tree: names, sizes, floors."""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

from pallas_debug.bridge import jaxcompat

ROOT = Path(__file__).parents[2]
PACKAGES = (
    ROOT / "pallas_debug",
    ROOT / "kernels" / "pallas_debug_kernels",
    ROOT / "pytest_plugin" / "pallas_debug_pytest",
)


def classes() -> dict[str, list[str]]:
    """Where each public class is defined."""
    found = defaultdict(list)
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return found


def test_public_class_names_are_unique() -> None:
    shared = {name: places for name, places in classes().items() if len(places) > 1}
    assert not shared


JAXCOMPAT = "pallas_debug.bridge.jaxcompat"
"""The only importer of private names of jax."""

USED_WITHIN = {
    "checkify": {"assert_func"},
    "gpu_params": {"InterpretGPUParams"},
    "mlir_ir": {"DialectRegistry"},
    "tpu_info": {"get_tpu_info"},
}
"""Names that only `jaxcompat` itself uses."""

CHANGES = {
    *("append", "clear", "extend", "insert", "pop", "popitem", "remove", "setdefault", "discard"),
    *("update", "addFilter", "removeFilter", "__setitem__", "__setattr__", "setattr", "delattr"),
}

NOT_PATCHES = {
    "dispatch.runtime_tokens.clear()": "a method of jax's, which changes its state as jax does",
    "jax.config.update(": "settings, by the function that is for it",
}


def names_of_jax(tree: ast.Module) -> set[str]:
    """Names that a module imports from jax."""
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
    return {
        (alias.asname or alias.name).partition(".")[0]
        for node in imports
        for alias in node.names
        for module in [getattr(node, "module", None) or alias.name]
        if module.partition(".")[0] in ("jax", "jaxlib") or module == JAXCOMPAT
    }


def root(node: ast.expr) -> str:
    """`mlir` of `mlir._lowerings[p].rule`, and of `vars(mlir)`."""
    while True:
        if isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
            node = node.value
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("vars", "getattr"):
            node = node.args[0]
        else:
            return node.id if isinstance(node, ast.Name) else ""


def patches_in(tree: ast.Module) -> list[ast.AST]:
    """What changes an object of jax's that the module names."""
    of_jax, found = names_of_jax(tree), []
    for node in ast.walk(tree):
        changed: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            changed = [t for one in node.targets for t in getattr(one, "elts", [one])]
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            changed = [node.target]
        elif isinstance(node, ast.Call):
            function = ast.unparse(node.func).rpartition(".")[2]
            if function in ("setattr", "delattr"):
                changed = [ast.Attribute(node.args[0], "_")]
            elif function in CHANGES:
                changed = [node.func]
        found += [node for one in changed if not isinstance(one, ast.Name) and root(one) in of_jax]
    return found


def test_jax_is_patched_by_the_table_alone() -> None:
    found = []
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            name = path.relative_to(package).as_posix()
            if name != "bridge/patches.py" and "jax" in (source := path.read_text()):
                for node in patches_in(ast.parse(source)):
                    if not ast.unparse(node).startswith(tuple(NOT_PATCHES)):
                        found.append(f"{name}:{node.lineno}: {ast.unparse(node)}")
    assert not found


def test_private_names_of_jax_come_through_one_door() -> None:
    """`jaxcompat` lists them; a module of jax that it stands for is imported nowhere else."""
    found, used = [], defaultdict(set)
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            tree = ast.parse(path.read_text())
            names: set[str] = set()
            for node in ast.walk(tree):
                modules: list[str] = []
                if isinstance(node, ast.Import):
                    modules = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom):
                    modules = [node.module or ""]
                    if node.module == JAXCOMPAT:
                        names |= {alias.asname or alias.name for alias in node.names}
                if any(m.startswith(("jax._src", "jaxlib")) for m in modules):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
            for node in ast.walk(tree):
                if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") in names:
                    used[ast.unparse(node.value)].add(node.attr)
    assert not found
    listed = {
        name: set(value.names)
        for name, value in vars(jaxcompat).items()
        if isinstance(value, jaxcompat.Internal)
    }
    for name, names in listed.items():
        assert used[name] - {"loaded"} <= names, name
        assert names - used[name] <= USED_WITHIN.get(name, set()), name


CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
    "contracts"
]


@pytest.mark.parametrize("package", ["pallas_debug", "pallas_debug.bridge"])
def test_the_floors_name_every_room(package: str) -> None:
    (contract,) = (c for c in CONTRACTS if c.get("containers") == [package])
    named = [name.strip() for layer in contract["layers"] for name in layer.split("|")]
    assert contract["exhaustive"]
    assert sorted(named) == sorted(modules(package))


def modules(package: str) -> set[str]:
    folder = ROOT / package.replace(".", "/")
    rooms = {path.parent.name for path in folder.glob("*/__init__.py")}
    return rooms | {path.stem for path in folder.glob("*.py") if path.stem != "__init__"}


def test_every_room_below_the_engines_is_without_jax() -> None:
    (floors,) = (c for c in CONTRACTS if c.get("containers") == ["pallas_debug"])
    below = floors["layers"][floors["layers"].index("bridge") + 1 :]
    rooms = {f"pallas_debug.{name.strip()}" for layer in below for name in layer.split("|")}
    (contract,) = (c for c in CONTRACTS if c["name"] == "The floors without jax")
    assert set(contract["source_modules"]) == rooms
    assert {"jax", "jaxlib"} <= set(contract["forbidden_modules"])
