"""Hostile programs for `reproduce`, `--run` and `--shrink`.

Only code that the closed grammar accepts may run: each program here would write a file, and the
file must not exist afterwards.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hostile_programs import BODY, HEAD, PROGRAM, WRITE, at_top, in_kernel, of, with_option

from pallas_debug.errors import CannotRunError
from pallas_debug.model import Failure
from pallas_debug.reproduce import flags, grammar, run, script, vet
from pallas_debug.reproduce.shrinking import search as shrink
from pallas_debug.reproduce.template import TEMPLATES


@dataclass(frozen=True)
class Hostile:
    """A program, and why it is refused."""

    name: str
    program: str
    why: str


IMPORT = "programs have no such import"
CALL = "is not a function that programs call"
BOUND = "is not bound above"

HOSTILE = [
    # Builtins, by whatever way.
    Hostile("builtin", in_kernel(WRITE), f"this {CALL}"),
    Hostile(
        "builtin_named_as_a_parameter",
        in_kernel("f = lambda exec: 0", f"exec({WRITE!r})"),
        f"this {CALL}",
    ),
    Hostile("builtin_as_a_value", in_kernel("v9 = lax.cond(v1, open, open)"), BOUND),
    Hostile("builtin_bound_below", in_kernel("lax.cond(v1, exec, exec)", "exec = v1"), BOUND),
    Hostile("builtin_of_another_scope", in_kernel("f = lambda eval: 0", "v9 = eval"), BOUND),
    Hostile("local_called", in_kernel("f = lambda a: a", "f(v1)"), f"this {CALL}"),
    Hostile("dunder_name", in_kernel("v9 = __builtins__"), BOUND),
    Hostile("dunder_import", in_kernel("__import__('os').system('true')"), f"this {CALL}"),
    Hostile("fullwidth_exec", in_kernel(f"ｅxec({WRITE!r})"), f"this {CALL}"),
    Hostile(
        "fullwidth_module", in_kernel("ｊax.config.update('x', 1)"), f"jax.config.update {CALL}"
    ),
    Hostile("letters_of_another_script", in_kernel("vариант = v1"), "is not a name that programs"),
    # Attributes.
    Hostile(
        "dunder_walk",
        in_kernel("v9 = ().__class__.__base__.__subclasses__()"),
        f"this {CALL}",
    ),
    Hostile("globals_of_a_function", in_kernel("v9 = lax.exp.__globals__"), "is not a value of a"),
    Hostile("getattr", in_kernel("v9 = getattr(jax, 'config')"), f"this {CALL}"),
    Hostile("module_in_lax", in_kernel("lax.lax.np.save('canary', 1)"), f"lax.lax.np.save {CALL}"),
    Hostile("module_in_pltpu", in_kernel("pltpu.core.os.system('true')"), CALL),
    Hostile("module_as_a_value", in_kernel("v9 = lax"), BOUND),
    Hostile("module_under_another_name", in_kernel("v9 = v1", "v9.os.system('true')"), CALL),
    Hostile("config", in_kernel("jax.config.update('jax_platforms', 'tpu')"), CALL),
    Hostile("np_save", in_kernel("np.save('canary', 1)"), f"np.save {CALL}"),
    Hostile("np_load", in_kernel("v9 = np.load('/etc/passwd', None, True)"), f"np.load {CALL}"),
    Hostile("np_fromfile", in_kernel("v9 = np.fromfile('/etc/passwd')"), f"np.fromfile {CALL}"),
    Hostile("np_memmap", in_kernel("v9 = np.memmap('canary', mode='w+')"), f"np.memmap {CALL}"),
    Hostile("jnp_save", in_kernel("jnp.save('canary', v1)"), f"jnp.save {CALL}"),
    Hostile("jnp_load", in_kernel("jnp.load('/etc/passwd')"), f"jnp.load {CALL}"),
    Hostile("tofile", in_kernel("v1.tofile('canary')"), f"this {CALL}"),
    Hostile(
        "debug_callback", in_kernel("jax.debug.callback(double)"), f"jax.debug.callback {CALL}"
    ),
    Hostile(
        "pure_callback", in_kernel("jax.pure_callback(double, v1)"), f"jax.pure_callback {CALL}"
    ),
    Hostile(
        "callback_primitive",
        at_top("import jax._src.callback").replace(
            "    o_ref[...] = v2",
            "    jax._src.callback.pure_callback_p.bind(v1)\n    o_ref[...] = v2",
        ),
        IMPORT,
    ),
    Hostile("foreign_call", in_kernel("v9 = jax._src.ffi.ffi_call_p.bind(v1)"), CALL),
    Hostile(
        "primitive_of_a_module_not_imported",
        in_kernel("v9 = jax._src.lax.linalg.qr_p.bind(v1)"),
        "jax._src.lax.linalg is not imported",
    ),
    Hostile("primitive_with_a_function", in_kernel("v9 = lax.reduce_p.bind(v1)"), CALL),
    Hostile("method_of_a_copy", in_kernel("pltpu.make_async_copy.__call__()"), CALL),
    Hostile("format", in_kernel("v9 = '{0.__class__}'.format(v1)"), f"this {CALL}"),
    # Imports.
    Hostile("import_os", at_top("import os"), IMPORT),
    Hostile(
        "import_as_lax", HEAD.replace("from jax import lax", "import os as lax") + BODY, IMPORT
    ),
    Hostile(
        "import_from_as_lax",
        HEAD.replace("from jax import lax", "from os import path as lax") + BODY,
        IMPORT,
    ),
    Hostile("other_name", HEAD.replace("import jax\n", "import jax as jnp\n") + BODY, IMPORT),
    Hostile("private_module", at_top("import jax._src.config"), IMPORT),
    Hostile("private_module_as", at_top("import jax._src.core as core"), IMPORT),
    Hostile("star", at_top("from os import *"), IMPORT),
    Hostile("relative", at_top("from . import os"), IMPORT),
    Hostile("two_at_once", at_top("import jax, os"), IMPORT),
    Hostile("imported_twice", at_top("import jax"), IMPORT),
    Hostile("import_in_a_kernel", in_kernel("import os"), "a kernel has no Import"),
    Hostile(
        "missing_import", HEAD.replace("import numpy as np\n", "") + BODY, "does not import np"
    ),
    # Forms.
    Hostile(
        "decorator",
        PROGRAM.replace("def double", "@jax.debug.callback\ndef double"),
        "expected a plain function",
    ),
    Hostile(
        "inner_decorator",
        in_kernel("@exec", "def inner():", "    pass"),
        "decorated by something other than `pl.when`",
    ),
    Hostile(
        "default",
        in_kernel(f"def inner(a={WRITE}):", "    pass"),
        "takes more than plain arguments",
    ),
    Hostile("lambda_default", in_kernel(f"f = lambda a={WRITE}: a"), "more than plain arguments"),
    Hostile(
        "keyword_only",
        in_kernel(f"def inner(*, a={WRITE}):", "    pass"),
        "more than plain arguments",
    ),
    Hostile(
        "annotation", in_kernel(f"def inner(a: {WRITE}):", "    pass"), "has a type annotation"
    ),
    Hostile("returns", in_kernel(f"def inner() -> {WRITE}:", "    pass"), "has a type annotation"),
    Hostile("annotated_assignment", in_kernel(f"v9: {WRITE} = 1"), "a kernel has no AnnAssign"),
    Hostile("nested_lambdas", in_kernel(f"f = lambda: lambda: {WRITE}"), f"this {CALL}"),
    Hostile("class_body", in_kernel("class A:", f"    {WRITE}"), "a kernel has no ClassDef"),
    Hostile("comprehension", in_kernel("v9 = [a for a in v1]"), "a kernel has no ListComp"),
    Hostile("generator", in_kernel(f"v9 = ({WRITE} for a in v1)"), "a kernel has no GeneratorExp"),
    Hostile("f_string", in_kernel(f'v9 = f"{{{WRITE}}}"'), "a kernel has no JoinedStr"),
    Hostile("walrus", in_kernel(f"v9 = (f := {WRITE})"), "a kernel has no NamedExpr"),
    Hostile("loop", in_kernel("while True: pass"), "a kernel has no While"),
    Hostile("with", in_kernel(f"with {WRITE} as f: pass"), "a kernel has no With"),
    Hostile("try", in_kernel("try:", f"    {WRITE}", "finally:", "    pass"), "has no Try"),
    Hostile("assert", in_kernel(f"assert {WRITE}"), "a kernel has no Assert"),
    Hostile("global", in_kernel("global jax"), "a kernel has no Global"),
    Hostile("delete", in_kernel("del v1"), "a kernel has no Delete"),
    Hostile("await", in_kernel(f"async def inner(): {WRITE}"), "has no AsyncFunctionDef"),
    Hostile("conditional", in_kernel(f"v9 = {WRITE} if v1 else v1"), "a kernel has no IfExp"),
    Hostile("unpacking", in_kernel("pl.ds(**v1)"), "arguments are unpacked from a dict"),
    Hostile("starred", in_kernel("pl.ds(*v1)"), "a kernel has no Starred"),
    Hostile("several_targets", in_kernel("v8 = v9 = v1"), "a kernel has no Assign"),
    Hostile(
        "attribute_assigned", in_kernel("v1.at = v1"), "the target of an assignment is not a name"
    ),
    Hostile("module_rebound", in_kernel("lax = v1"), "is the name of a module, and bound again"),
    Hostile("module_as_a_parameter", in_kernel("f = lambda np: np"), "and bound again"),
    Hostile("module_as_a_function", in_kernel("def jax():", "    pass"), "and bound again"),
    Hostile("dunder_bound", in_kernel("__class__ = v1"), "is not a name that programs bind"),
    Hostile(
        "function_of_the_script",
        PROGRAM.replace("def double", "def main(): pass\n\ndef double"),
        "main is a name of the script",
    ),
    Hostile("expression_at_the_top", PROGRAM + WRITE + "\n", "more follows `call`"),
    Hostile("code_in_arguments", PROGRAM.replace("(8, 128), jnp", f"{WRITE}, jnp", 1), "computed"),
    Hostile(
        "argument_that_is_computed",
        PROGRAM.replace(
            "jax.ShapeDtypeStruct((8, 128), jnp.float32),  # x", "jnp.zeros((10**12,)), # x", 1
        ),
        "an argument is not a `jax.ShapeDtypeStruct`",
    ),
    Hostile("axes_that_are_code", PROGRAM.replace("AXES = {}", f"AXES = {WRITE}"), "is not a dict"),
    Hostile("huge_axis", PROGRAM.replace("AXES = {}", "AXES = {'x': 10000000}"), "no size from 1"),
    Hostile("x64_that_is_code", PROGRAM.replace("64 = False", f"64 = {WRITE}"), "is not a bool"),
    # Options with paths, and flags.
    Hostile("debug", with_option("debug=True"), "is given debug="),
    Hostile("interpret", with_option("interpret=True"), "is given interpret="),
    Hostile(
        "flags_of_a_kernel",
        with_option("compiler_params=pltpu.CompilerParams(flags={'xla_dump_to': 'canary'})"),
        "the flag 'xla_dump_to' is not one that a script sets",
    ),
    Hostile(
        "flags_by_place",
        with_option("compiler_params=pltpu.CompilerParams(None, None, None, None, None, {})"),
        "takes fields only by name",
    ),
    # Sizes.
    Hostile("long_string", in_kernel(f"v9 = {'a' * 20_000!r}"), "more than 10,000 characters"),
    Hostile("long_number", in_kernel(f"v9 = 0x{'f' * 400}"), "needs more than 64 bits"),
    Hostile("many_digits", in_kernel(f"v9 = {'9' * 5000}"), "it is not valid Python"),
    Hostile("infinite", in_kernel("v9 = 1e999"), "too large for its kind"),
    Hostile("power", in_kernel("v9 = 10 ** 10 ** 10"), "a kernel has no Pow"),
    Hostile("times_a_string", in_kernel("v9 = 'a' * 999999999"), "with strings or lists"),
    Hostile("times_a_list", in_kernel("v9 = [0] * 999999999"), "with strings or lists"),
    Hostile("shift", in_kernel("v9 = 1 << 999999999"), "a kernel has no LShift"),
    Hostile("deep", in_kernel(f"v9 = {'(' * 90}v1{',)' * 90}"), "nested more than 60 deep"),
    Hostile("deeper", in_kernel(f"v9 = {'-' * 50_000}1"), "it is nested too deeply"),
    Hostile("brackets", in_kernel("v9 = " + "(" * 50_000), "too many nested parentheses"),
    Hostile("chain", in_kernel("v9 = v1" + ".at" * 50_000), "it is nested too deeply"),
    Hostile("long", PROGRAM + "#" * 1_000_001, "and a program at most 1,000,000"),
    # Bytes.
    Hostile(
        "nul", PROGRAM + "\0", "it is not valid Python: source code string cannot contain null"
    ),
    Hostile("no_python", PROGRAM + "1 +* 2\n", "it is not valid Python: invalid syntax"),
    Hostile("lone_surrogate", PROGRAM + "# \ud800", "it is not valid Python: "),
    Hostile("empty", "", "it does not import jax"),
    Hostile(
        "begins_as_if_there_were_none",
        f"# There is no program of this kernel: it has none.\nimport os\n{PROGRAM}",
        IMPORT,
    ),
    Hostile(
        "line_break_of_another_kind",
        PROGRAM.replace("# x_ref", "# x_ref\x0c\n" + WRITE, 1),
        "an argument is not a `jax.ShapeDtypeStruct`",
    ),
]


@pytest.fixture
def no_canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in which nothing is written."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    yield folder
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda hostile: hostile.name)
def test_programs(hostile: Hostile, no_canary: Path) -> None:
    found = of(hostile.program)
    with pytest.raises(CannotRunError) as error:
        script.script_of(found)
    message = str(error.value)
    assert message.startswith("the dump's program is refused")
    assert hostile.why in message
    assert message.endswith(
        ". A script sets only flags from a closed list, as others can name a file to write to. "
        "Remove it from the kernel's compiler_params, and dump the kernel again"
        if hostile.name == "flags_of_a_kernel"
        else ". pallas-debug does not write such programs: the file was changed, or written by "
        "another version. Dump the kernel again"
    )
    assert message.isprintable()
    assert len(message) < 700
    with pytest.raises(CannotRunError) as shrunk:
        shrink.shrunk(found, seconds=5)
    assert str(shrunk.value) == message


def test_a_flag_from_the_closed_list() -> None:
    params = "pltpu.CompilerParams(flags={'XLA_TPU_FORCE_LP_LLO_SCHEDULER': True})"
    assert params in grammar.emitted(with_option(f"compiler_params={params}"))


def test_the_program_itself_is_none_of_them() -> None:
    emitted = grammar.emitted(PROGRAM)
    assert ast.dump(ast.parse(emitted)) == ast.dump(ast.parse(PROGRAM))
    vet.require(script.script_of(of()))


BREAKS = ["\n", "\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\0"]
ODD = [*BREAKS, "\u202e", "\u2066", "\x1b[2J", "\x9b", "\x7f", "\ud800", "\ue000"]
CODE = f"import os; {WRITE}"


@pytest.mark.parametrize("odd", ODD, ids=ascii)
def test_the_head_is_comments(odd: str, no_canary: Path) -> None:
    text = f"a{odd}{CODE}{odd}"
    failure = Failure(stage="lowering", type=text, message=f"{text}\n{text}")
    base = of()
    assert base.compilation is not None
    hostile = replace(
        base,
        kernel=replace(base.kernel, name=text, versions={text: text}),
        target=replace(base.target, name=text),
        why_no_program=text,
        compilation=replace(
            base.compilation, versions={"jax": text, text: text}, failure=failure, flags=(text,)
        ),
    )
    for found in (hostile, replace(hostile, program=None)):
        made = script.script_of(found, note=text)
        assert all(line.isprintable() for line in made.split("\n"))
        head = made[: made.index("\nimport ")]
        assert CODE.split()[0] in head
        assert all(line.startswith("#") for line in head.split("\n"))
        assert not any(ast.unparse(n) == "import os" for n in ast.parse(made).body)


@pytest.mark.parametrize("cookie", ["coding: utf-7", "coding=utf_7", "-*- coding: unicode_escape"])
def test_no_field_names_the_encoding(cookie: str, no_canary: Path) -> None:
    base = of()
    named = replace(base, kernel=replace(base.kernel, name=f"{cookie} \\nimport os +AAo-import os"))
    made = script.script_of(named)
    (first,) = [n for n in ast.parse(made.encode()).body if isinstance(n, ast.Assign)][:1]
    assert ast.unparse(first.targets[0]) == "ARGUMENTS"
    assert not any(ast.unparse(n) == "import os" for n in ast.parse(made.encode()).body)


FLAGS = [
    "--xla_dump_to=canary", "--xla_mosaic_dump_to=canary", "--xla_jf_dump_to canary",
    "--xla_tpu_scoped_vmem_limit_kib=../../canary", "--xla_mosaic_enable_dump_debug_info=canary",
    "-xla_dump_to=canary", "--flagfile=canary", "--log_dir=canary", "xla_dump_to=canary",
    "--xla_mosaic_on_device_checks=/canary", "--xla_jf_dump_static_llo_profile_to=canary",
    "--tpu_library_path=canary.so", "=canary", "--",
]  # fmt: skip


@pytest.mark.parametrize("flag", FLAGS)
def test_flags_are_left_out(flag: str) -> None:
    base = of()
    assert base.compilation is not None
    known = "--xla_tpu_scoped_vmem_limit_kib=65536"
    found = replace(base, compilation=replace(base.compilation, flags=(flag, known)))
    made = script.script_of(found)
    assert f"FLAGS = '{known}'\n" in made
    name = flag.lstrip("-").replace(" ", "=").partition("=")[0]
    message = script.left_out(found)
    assert message == (
        f"libtpu's flags {name} are left out: a script sets only flags that are known to write no "
        "files. Set LIBTPU_INIT_ARGS in a copy of the script if the failure needs them"
    )
    assert f"# Libtpu's flags {name} are left out" in made
    assert "canary" not in made.replace(message, "")


def test_known_flags_hold_no_path() -> None:
    for name, values in flags.KNOWN.items():
        assert "dump_to" not in name
        assert not any(values.fullmatch(path) for path in ("/tmp", "a/b", "..", "canary"))
    assert flags.chosen(["-xla_enable_transpose_trace", "true"]).kept == (
        "--xla_enable_transpose_trace=true",
    )


Change = Callable[[str], str]

CHANGED: dict[str, tuple[Change, str]] = {
    "more": (lambda s: s + "\nopen('canary', 'w')\n", "does not end as the scripts of this version"),
    "template": (lambda s: s.replace("return 3", "return 4"), "does not end as the scripts"),
    "encoding": (lambda s: s.replace("utf-8", "utf-7", 1), "does not begin with its encoding"),
    "head": (lambda s: s.replace("# Run it", "import os\n# Run it", 1), "programs have no such import"),
    "topology": (lambda s: s.replace("'v5e:2x2'", "'a b/../c'"), "TOPOLOGY is 'a b/../c'"),
    "kind": (lambda s: s.replace("'TPU v5 lite'", "'a/b'"), "DEVICE_KIND, NUM_CORES is ('a/b', 1)"),
    "devices": (lambda s: s.replace("NUM_DEVICES = 1\n", "NUM_DEVICES = 9**9\n"), "is not a literal"),
    "many": (lambda s: s.replace("NUM_DEVICES = 1\n", "NUM_DEVICES = 9999\n"), "is 9999"),
    "flags": (lambda s: s.replace("FLAGS = ''", "FLAGS = '--xla_dump_to=c'"), "FLAGS is '--xla_dump"),
    "options": (lambda s: s.replace("OPTIONS = {}", "OPTIONS = {'a': 'b'}"), "OPTIONS is {'a': 'b'}"),
    "settings": (lambda s: s.replace("SETTINGS = ()", "SETTINGS = ('a',)"), "SETTINGS is ('a',)"),
    "bidi": (lambda s: s.replace("# Run it", "# \u202e Run it"), "not printable"),
    "program": (lambda s: s.replace("lax.cumsum(", "np.save("), "np.save is not a function that programs"),
    "broken": (lambda s: s + "1 +* 2", "it is not valid Python (SyntaxError)"),
    "cut": (lambda s: s[: s.rindex("\ndef ") + 1], "does not end as the scripts of this version do"),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGED)
def test_the_whole_script_is_checked(what: str, no_canary: Path) -> None:
    change, why = CHANGED[what]
    made = script.script_of(of())
    changed = change(made)
    assert changed != made
    with pytest.raises(CannotRunError) as error:
        run.run(changed)
    message = str(error.value)
    assert message.startswith("the script is not run: ")
    assert why in message
    assert message.endswith(
        "This is an internal error in pallas-debug, or an attack on it that was stopped here: "
        "please report it with the dump"
    )


def test_a_module_is_data() -> None:
    text = "'''\"\"\"\nimport os\n\0\u2028" * 50
    made = script.script_of(of(None, stablehlo=text))
    tree = ast.parse(made.encode())
    assert [ast.unparse(n) for n in tree.body if isinstance(n, ast.Import)] == [
        "import base64", "import zlib", "import jax",  "import numpy as np",
    ]  # fmt: skip
    with pytest.raises(CannotRunError, match="MODULE is not a packed module"):
        vet.require(made.replace("MODULE = (", "MODULE = ('\"',"))
    with pytest.raises(CannotRunError, match="and a script holds at most 67,108,864"):
        script.script_of(of(None, stablehlo="a" * (script.MAX_STABLEHLO + 1)))


# Dumps, by the command.


def test_reserved_names_are_those_of_the_templates() -> None:
    """A kernel or operand never takes a name that the script around it reads."""
    from pallas_debug.bridge.unparse import vocabulary

    used = set()
    for template in TEMPLATES.values():
        tree = ast.parse(template)
        local = {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
        for node in ast.walk(tree):
            if isinstance(node, (ast.Assign, ast.With, ast.For, ast.ExceptHandler)):
                local |= {
                    n.id
                    for n in ast.walk(node)
                    if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
                }
        used |= {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} - local
        used |= {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}
    imported = {
        (alias.asname or alias.name).partition(".")[0]
        for template in TEMPLATES.values()
        for node in ast.walk(ast.parse(template))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    known = vocabulary.RESERVED | imported | {"__name__", "error", "name"}
    assert used <= known
