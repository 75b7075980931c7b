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


BELONGS_TO_US = {
    # Options of a compilation that is about to begin, made there.
    ("bridge/libtpu.py", "options"),
    ("bridge/libtpu.py", "build_options"),
    ("bridge/libtpu.py", "debug_options"),
    ("bridge/instrument/observe.py", "sharding"),
    # A function made there.
    ("bridge/lowering/executable.py", "program"),
    # Units of equations are objects of ours.
    ("bridge/programs/numerics.py", "unit"),
    # A primitive of ours, and its rules.
    ("bridge/jaxprs/marker.py", "breakpoint_p"),
    ("bridge/jaxprs/marker.py", "ad"),
    ("bridge/jaxprs/marker.py", "batching"),
    # This thread's place in the source while it traces a kernel, put back afterwards.
    ("bridge/lowering/hook.py", "context"),
    # Python's import while a program runs, and settings that the program itself makes.
    ("bridge/platform.py", "builtins"),
    ("bridge/platform.py", "jax"),
}
"""Objects that are changed in a module that imports jax, and are not jax's."""

CHANGES = {"append", "clear", "extend", "insert", "pop", "popitem", "remove", "setdefault"} | {
    "discard",
    "update",
    "addFilter",
    "removeFilter",
    "__setitem__",
    "__setattr__",
}

NOT_PATCHES = {"dispatch.runtime_tokens.clear"}
"""Calls of jax's own methods that change jax's state as jax does."""


JAXCOMPAT = "pallas_debug.bridge.jaxcompat"
"""The only importer of private names of jax."""


USED_WITHIN = {
    "checkify": {"assert_func"},
    "gpu_params": {"InterpretGPUParams"},
    "lowering": {"_aval_to_log_format_spec"},
    "mlir_ir": {"DialectRegistry"},
    "tpu_info": {"get_tpu_info"},
}
"""Names that only `jaxcompat` itself uses."""


def is_of_jax(module: str) -> bool:
    return module.partition(".")[0] in ("jax", "jaxlib") or module == JAXCOMPAT


def called(call: ast.Call) -> str:
    """`pop` of `mlir._lowerings.pop()`."""
    return str(getattr(call.func, "id", getattr(call.func, "attr", "")))


def root(node: ast.expr) -> str:
    """`mlir` of `mlir._lowerings[p].rule`; that of `x` for `vars(x)`."""
    while True:
        if isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id not in ("vars", "getattr") or not node.args:
                return ""
            node = node.args[0]
        else:
            return node.id if isinstance(node, ast.Name) else ""


def ours_of(tree: ast.Module) -> set[str]:
    """Names that stand for something of our own: `self`, what the module makes, typed arguments."""
    made = {"self", "cls"}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            function = ast.unparse(node.value.func)
            if function == "threading.local" or function.startswith("_"):
                made |= {t.id for t in node.targets if isinstance(t, ast.Name)}
        module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
        if module.startswith("pallas_debug") and not is_of_jax(module):
            made |= {alias.asname or alias.name for alias in node.names}
    defined = {n.name for n in ast.walk(tree) if isinstance(n, ast.ClassDef)} | made
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and getattr(node.annotation, "id", None) in defined:
            made.add(node.arg)
        call = node.value if isinstance(node, ast.Assign) else None
        if isinstance(call, ast.Call) and getattr(call.func, "id", None) in defined:
            made |= {t.id for t in node.targets if isinstance(t, ast.Name)}
    return made


def patches_in(tree: ast.Module) -> list[tuple[int, str, str]]:
    """Line, root and text of whatever may change an object of jax's."""
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
    of_jax = {
        (alias.asname or alias.name).partition(".")[0]
        for node in imports
        for alias in node.names
        if is_of_jax(getattr(node, "module", None) or alias.name)
    }
    if not of_jax:
        return []
    ours = ours_of(tree)
    found = []
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = [t for one in node.targets for t in getattr(one, "elts", [one])]
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            is_foreign = isinstance(target, ast.Attribute) and root(target) not in ours
            if is_foreign or (not isinstance(target, ast.Name) and root(target) in of_jax):
                found.append((target.lineno, root(target), ast.unparse(target)))
        if isinstance(node, ast.Call) and called(node) in (*CHANGES, "setattr", "delattr"):
            function = ast.unparse(node.func)
            if function in ("setattr", "delattr", "object.__setattr__"):
                if root(node.args[0]) in ours:
                    continue
                found.append((node.lineno, root(node.args[0]), ast.unparse(node)))
            elif (
                isinstance(node.func, ast.Attribute)
                and node.func.attr in CHANGES
                and (root(node.func) in of_jax or function.endswith("Filter"))
                and function not in NOT_PATCHES
            ):
                found.append((node.lineno, root(node.func), ast.unparse(node)))
    return found


def test_jax_is_patched_by_the_table_alone() -> None:
    found = []
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            name = path.relative_to(package).as_posix()
            if name == "bridge/patches.py":
                continue
            source = path.read_text()
            if "jax" not in source:  # nothing of it is imported
                continue
            for line, owner, text in patches_in(ast.parse(source)):
                if (name, owner) not in BELONGS_TO_US:
                    found.append(f"{name}:{line}: {text}")
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


@pytest.mark.parametrize(
    "code",
    [
        "from pallas_debug.bridge.jaxcompat import pjit\npjit._get_fastpath_data = ours",
        "from jax._src import pjit\npjit._get_fastpath_data = ours",
        "from jax._src.interpreters import mlir\nmlir._lowerings[p] = ours",
        "from jax._src import checkify\ncheckify.error_checks.pop(p, None)",
        "from jax._src import xla_bridge\nxla_bridge._backend_factories.pop('tpu', None)",
        "from jax._src import tpu_info\nvars(tpu_info).update(get_device_kind=ours)",
        "import jax\ndef replace(owner, name, new):\n    setattr(owner, name, new)",
        "import jax\nfor primitive in PRIMITIVES:\n    primitive.bind = ours",
        "import jax\njax.config.update('jax_traceback_filtering', 'off')",
        "import jax\nlogger = logging.getLogger('jax')\nbefore, logger.disabled = 1, True",
        "import jax\nlogger.addFilter(ours)",
        "from jax._src import source_info_util\n"
        "context = source_info_util._source_info_context\ncontext.context = ours",
        "from jax.experimental import mosaic\ndel mosaic.lower_module_to_custom_call",
    ],
)
def test_a_patch_elsewhere_would_be_found(code: str) -> None:
    assert patches_in(ast.parse(code))


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
