"""A dump's program is somebody's file: before it is run, it must do no more than a kernel does.

Only the forms that `bridge/spell` writes are let through: definitions, assignments, and calls of
what jax and Pallas offer to kernels. Nothing else can be reached by them: no built-in function, no
module but these, no name that begins with an underscore.
"""

from __future__ import annotations

import ast
import re

from pallas_debug.bridge import internals
from pallas_debug.errors import CannotRunError

_MODULES = {"jax", "jax.numpy", "numpy", "jax.lax", "jax.experimental", "jax.experimental.pallas"}
_IMPORTED = {"lax", "pallas", "tpu"}
_ROOTS = {"jax", "jnp", "np", "lax", "pl", "pltpu"}
_NUMPY = {"array", "bool_", "float16", "float32", "float64", "complex64"} | {
    f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)
}
_JNP = re.compile(r"inf|nan|zeros|bool_|(?:b?float|u?int|complex)\d\w*")
_JAX = {"ShapeDtypeStruct", "ref.swap", "ref.addupdate", "experimental.checkify.check"}
_METHODS = {"at", "bitcast", "reshape", "transpose", "start", "wait", "wait_send", "wait_recv"}
_MODULE_FILES = {"lower_as_mlir", "pallas_export_experimental", "core"}

_FORMS = (
    ast.Module, ast.Import, ast.ImportFrom, ast.alias, ast.FunctionDef, ast.arguments, ast.arg,
    ast.Assign, ast.Expr, ast.Return, ast.Pass, ast.Lambda, ast.Call, ast.keyword, ast.Starred,
    ast.Attribute, ast.Subscript, ast.Slice, ast.Name, ast.Constant, ast.Tuple, ast.List, ast.Dict,
    ast.BinOp, ast.UnaryOp, ast.Compare, ast.operator, ast.unaryop, ast.cmpop, ast.expr_context,
)  # fmt: skip


def require(program: str) -> None:
    """That a program is a kernel and no more.

    Raises:
      CannotRunError: it is something else; the message names the line.
    """
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError) as error:
        raise CannotRunError(f"the dump's program is no Python: {error}") from error
    defined = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and _is_store(n)}
    defined |= {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    defined |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    inner = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    for node in ast.walk(tree):
        if not _is_allowed(node, defined, is_whole=id(node) not in inner):
            raise CannotRunError(
                f"the dump's program is not run: its line {getattr(node, 'lineno', 1)} does what "
                f"no kernel needs: {ast.unparse(node)[:80]}. Was the dump changed?"
            )


def _is_store(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _is_allowed(node: ast.AST, defined: set[str], *, is_whole: bool) -> bool:
    if not isinstance(node, _FORMS):
        return False
    if isinstance(node, ast.Import):
        return all(_is_module(alias.name) for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        known = {alias.name for alias in node.names} <= _IMPORTED
        return known and node.module in _MODULES and node.level == 0
    if isinstance(node, ast.Name):
        if node.id in _ROOTS:
            return not _is_store(node)
        return node.id in defined and not node.id.startswith("__")
    if isinstance(node, ast.Attribute) and is_whole:
        return _is_offered(node, defined)
    return not isinstance(node, (ast.FunctionDef, ast.arg)) or _is_own(node)


def _is_own(node: ast.FunctionDef | ast.arg) -> bool:
    """Whether a definition leaves the modules' names alone."""
    return (node.name if isinstance(node, ast.FunctionDef) else node.arg) not in _ROOTS


def _is_module(name: str) -> bool:
    return (
        name in _MODULES or name == "jax.experimental.checkify" or name.startswith(internals.PREFIX)
    )


def _is_offered(node: ast.Attribute, defined: set[str]) -> bool:
    """Whether a dotted name is one that kernels use, or a method that refs and copies have."""
    names: list[str] = []
    base: ast.expr = node
    while isinstance(base, ast.Attribute):
        names.insert(0, base.attr)
        base = base.value
    root = base.id if isinstance(base, ast.Name) else ""
    if root not in _ROOTS or root in defined:
        return set(names) <= _METHODS
    path = ".".join(names)
    if root == "jax":
        return path in _JAX or _is_primitive(names)
    if root == "np":
        return path in _NUMPY
    if root == "jnp":
        return _JNP.fullmatch(path) is not None
    return len(names) <= 3 and not any(n.startswith("_") or n in _MODULE_FILES for n in names)


def _is_primitive(names: list[str]) -> bool:
    """`_src.pallas.mosaic.primitives.roll_p.bind`"""
    inner = names[1:-2]
    return (
        names[0] == "_src"
        and len(names) > 3
        and names[-1] == "bind"
        and names[-2].endswith("_p")
        and not any(name.startswith("_") for name in inner)
    )
