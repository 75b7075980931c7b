"""Hostile programs and dumps for `reproduce`, `--run` and `--shrink`.

Only code that the closed grammar accepts may run: each program here would write a file, and the
file must not exist afterwards.
"""

from __future__ import annotations

import ast
import json
import os
import pty
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pallas_debug.compiler import targets
from pallas_debug.errors import CannotRunError, DumpFormatError, PallasDebugError
from pallas_debug.model import Compilation, Failure, Kernel
from pallas_debug.reproduce import flags, grammar, recorded, run, script, vet
from pallas_debug.reproduce.confined import environment
from pallas_debug.reproduce.expressions import printable
from pallas_debug.reproduce.recorded import Recorded
from pallas_debug.reproduce.shrinking import search as shrink
from pallas_debug.reproduce.template import TEMPLATES
from pallas_debug.store import Store, open_dumps, origin

CANARY = "canary"

HEAD = """\
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
"""

BODY = """
ARGUMENTS = [
    jax.ShapeDtypeStruct((8, 128), jnp.float32),  # x_ref
]
AXES = {}
ENABLE_X64 = False


def double(x_ref, o_ref):
    v1 = x_ref[...]  # f32[8,128]
    v2 = lax.cumsum(v1, axis=0, reverse=False)  # f32[8,128]
    o_ref[...] = v2


def call(*args):
    return pl.pallas_call(
        double,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=0,
            grid=(1,),
            in_specs=[
                pl.BlockSpec((8, 128), lambda i0: (i0, 0)),  # x_ref
            ],
            out_specs=[
                pl.BlockSpec((8, 128), lambda i0: (i0, 0)),  # o_ref
            ],
            scratch_shapes=[],
        ),
        out_shape=[
            jax.ShapeDtypeStruct((8, 128), jnp.float32),  # o_ref
        ],
    )(*args)
"""

PROGRAM = HEAD + BODY
WRITE = f"open({CANARY!r}, 'w')"


def in_kernel(*lines: str) -> str:
    """The program with these lines in its kernel."""
    inner = "".join(f"    {line}\n" for line in lines)
    return PROGRAM.replace("    o_ref[...] = v2\n", inner + "    o_ref[...] = v2\n")


def at_top(*lines: str) -> str:
    return HEAD + "".join(f"{line}\n" for line in lines) + BODY


def with_option(option: str) -> str:
    return PROGRAM.replace("    )(*args)", f"        {option},\n    )(*args)")


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
    said = str(error.value)
    assert said.startswith("the dump's program is refused")
    assert hostile.why in said
    assert said.endswith(
        ". pallas-debug writes no such program: it was changed, or written by another version. "
        "Dump the kernel again"
    )
    assert said.isprintable()
    assert len(said) < 700
    with pytest.raises(CannotRunError) as shrunk:
        shrink.shrunk(found, seconds=5)
    assert str(shrunk.value) == said


def of(program: str | None = PROGRAM, **given: Any) -> Recorded:
    """What a hostile dump holds."""
    kernel = Kernel(name="double", digest="0" * 64, primitive="pallas_call")
    compilation = Compilation(
        kernel="double", target="v5e", status="failed", key="",
        failure=Failure(stage="lowering", type="A", message="b"), versions={"jax": "0.10.2"},
    )  # fmt: skip
    target = targets.resolve("v5e")
    return Recorded(
        **{
            "kernel": kernel,
            "target": target,
            "topology": target.topology or "",
            "num_devices": 1,
            "program": program,
            "why_no_program": "",
            "stablehlo": "module {}",
            "compilation": compilation,
            **given,
        }
    )


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
    said = script.left_out(found)
    assert said == (
        f"libtpu's flags {name} are left out: a script sets only flags that are known to write no "
        "files. Set LIBTPU_INIT_ARGS in a copy of the script if the failure needs them"
    )
    assert f"# Libtpu's flags {name} are left out" in made
    assert "canary" not in made.replace(said, "")


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
    "cut": (lambda s: s[: len(s) // 2], "does not end as the scripts of this version do"),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGED)
def test_the_whole_script_is_checked(what: str, no_canary: Path) -> None:
    change, why = CHANGED[what]
    made = script.script_of(of())
    changed = change(made)
    assert changed != made
    with pytest.raises(CannotRunError) as error:
        run.run(changed)
    said = str(error.value)
    assert said.startswith("the script is not run: ")
    assert why in said
    assert said.endswith(
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


ENVIRONMENT = """
import json, os, resource, sys
print(json.dumps({
    "cwd": os.listdir(), "environment": dict(os.environ), "session": os.getsid(0) == os.getpid(),
    "limits": [resource.getrlimit(k)[0] for k in (
        resource.RLIMIT_DATA, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_CORE,
        resource.RLIMIT_CPU)],
    "files": sorted(int(n) for n in os.listdir("/proc/self/fd")),
}))
"""


def confined(code: str, *, seconds: float = 20) -> tuple[int | None, str, str]:
    from pallas_debug.reproduce.confined import ConfinedProcess

    with ConfinedProcess(code, seconds=seconds) as child:
        return child.wait(), child.out, child.err


def test_the_child_has_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = dict.fromkeys(("AWS_SECRET_ACCESS_KEY", "PYTHONPATH", "PYTHONSTARTUP", "LD_PRELOAD_X", "LIBTPU_INIT_ARGS", "XLA_FLAGS", "GITHUB_TOKEN", "SSH_AUTH_SOCK", "DISPLAY"), "secret")  # fmt: skip
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TPU_LIBRARY_PATH", "/somewhere/libtpu.so")
    code, out, err = confined(ENVIRONMENT)
    assert code == 0, err
    found = json.loads(out)
    assert found["cwd"] == []
    given = found["environment"]
    assert given.pop("LC_CTYPE", "C.UTF-8") == "C.UTF-8"  # Python's own
    assert set(given) == set(environment(Path("/home")))
    assert given["TPU_LIBRARY_PATH"] == "/somewhere/libtpu.so"
    assert "secret" not in given.values()
    assert given["HOME"] == given["TMPDIR"] != os.environ.get("HOME")
    assert not Path(given["HOME"]).exists()
    assert found["session"]
    data, file_size, files, core, cpu = found["limits"]
    assert (data, file_size, files, core) == (8 * 2**30, 16 * 2**20, 256, 0)
    assert 20 <= cpu <= 20 * (os.cpu_count() or 1) + 10
    assert found["files"] == [0, 1, 2, 3]  # 3 is the listing's own


def test_the_childs_limits() -> None:
    code, _, err = confined("bytearray(10**12)")
    assert code == 1
    assert "MemoryError" in err
    code, out, err = confined("print('x' * 10**8)")
    assert code != 0
    assert "File too large" in err
    assert len(out) <= 2**20


def test_the_childs_children_end_with_it(tmp_path: Path) -> None:
    pids = tmp_path / "pid"
    starts = (
        "import subprocess, sys, time\n"
        f"p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(pids)!r}, 'w').write(str(p.pid))\ntime.sleep(60)"
    )
    assert confined(starts, seconds=1.5)[0] is None
    assert _ends(pids.read_text())


def _ends(pid: str) -> bool:
    """Whether a process that was killed is gone soon, or waits for nothing but its parent."""
    for _ in range(100):
        try:
            state = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


# Dumps, by the command.


@dataclass(frozen=True)
class Dumps:
    """A dump directory made for a test."""

    root: Path
    folder: Path
    kernel: Kernel

    def change(self, file: str, **fields: Any) -> None:
        path = self.folder / file
        document = json.loads(path.read_text())
        path.write_text(json.dumps({**document, **fields}))


@pytest.fixture
def dumps(tmp_path: Path) -> Dumps:
    kernel = Kernel(name="double", digest="0" * 64, primitive="pallas_call")
    store = Store(tmp_path / "dumps")
    folder = store.put_kernel(kernel, jaxpr="{}", source=None)
    store.put_program(kernel, grammar.emitted(PROGRAM))
    base = of()
    assert base.compilation is not None
    failure = Failure(
        stage="lowering",
        type="NotImplementedError",
        message="Unimplemented primitive in Pallas TPU lowering for tc: cumsum.",
    )
    compilation = replace(base.compilation, failure=failure)
    store.put_compilation(kernel, compilation, {"stablehlo.mlir": b"module {}"})
    return Dumps(tmp_path / "dumps", folder, kernel)


def read(dumps: Dumps) -> Recorded:
    (stored,) = open_dumps(dumps.root).kernels()
    return recorded.read(stored, None)


FIELDS = [
    ({"target": "v5e:9999x9999"}, "the dump is for the unknown target 'v5e:9999x9999'; "),
    ({"target": "../../etc"}, "the dump is for the unknown target '../../etc'; "),
    ({"target": "a\nb"}, "the dump is for the unknown target 'a\\nb'; "),
    ({"num_devices": 10**9}, "is said to be for 1000000000 devices, and a kernel is compiled for "
     "1 to 1024: the dump was changed. Dump the kernel again"),
    ({"num_devices": 0}, "is said to be for 0 devices"),
    ({"num_devices": -1}, "`num_devices` is -1, which is not between 0 and "),
    ({"switches": ["log_recorder", "__import__"]}, "was compiled with the switch '__import__', "
     "which this version of pallas-debug does not have; it has log_recorder, "),
    ({"switches": ["\x1b[2J"]}, "was compiled with the switch '\\x1b[2J', "),
    ({"target": "tpu", "device_kind": "TPU v9\nimport os"}, "is a device and no topology"),
]  # fmt: skip


@pytest.mark.parametrize("fields,why", FIELDS, ids=lambda given: ascii(given)[:40])
def test_fields_of_a_compilation(dumps: Dumps, fields: dict[str, Any], why: str) -> None:
    (manifest,) = dumps.folder.glob("*/compilation.json")
    if "target" in fields:
        manifest = manifest.rename(manifest.with_name("compilation.json"))
    dumps.change(str(manifest.relative_to(dumps.folder)), **fields)
    with pytest.raises(PallasDebugError) as error:
        script.script_of(read(dumps))
    assert why in str(error.value)
    assert str(error.value).isprintable()


def test_a_mesh_of_any_size(dumps: Dumps) -> None:
    shutil.rmtree(dumps.folder / "v5e")
    dumps.change("kernel.json", mesh={"x": 10**18, "y": 10**18})
    (stored,) = open_dumps(dumps.root).kernels()
    with pytest.raises(CannotRunError, match="is said to be for 1025 devices"):
        recorded.read(stored, "v5e")


def test_origin(dumps: Dumps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = origin.key_file()
    assert key.stat().st_mode & 0o777 == 0o600
    assert key.parent.stat().st_mode & 0o077 == 0
    assert read(dumps).is_ours
    program = dumps.folder / "program.py"
    before = program.read_text()
    program.write_text(before + "\n")
    assert not read(dumps).is_ours
    program.write_text(before)
    dumps.change("kernel.json", digest="1" * 64)
    assert not read(dumps).is_ours
    dumps.change("kernel.json", digest="0" * 64)
    assert read(dumps).is_ours
    program.write_text("# There is no program of this kernel: it has none.\n")
    assert read(dumps).program is None
    assert read(dumps).is_ours  # its StableHLO is what is run, and is signed too
    (dumps.folder / "v5e" / "stablehlo.mlir").write_text("module { }")
    with pytest.raises(DumpFormatError, match=r"stablehlo\.mlir is damaged"):
        read(dumps)
    dumps.change("v5e/compilation.json", files={})  # a forged manifest agrees with the file
    assert not read(dumps).is_ours
    program.write_text(before)
    for signature in ("", "0" * 64, "é" * 99, "a" * 10_000):
        (dumps.folder / "program.py.hmac").write_text(signature)
        assert not read(dumps).is_ours
    (dumps.folder / "program.py.hmac").unlink()
    os.mkfifo(dumps.folder / "program.py.hmac")
    assert not read(dumps).is_ours
    key.chmod(0o644)  # others could have read it
    (dumps.folder / "program.py.hmac").unlink()
    Store(dumps.root).put_program(dumps.kernel, before)
    assert not (dumps.folder / "program.py.hmac").exists()
    key.chmod(0o600)
    Store(dumps.root).put_program(dumps.kernel, before)
    assert read(dumps).is_ours
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    assert not read(dumps).is_ours
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    Store(dumps.root).put_program(dumps.kernel, before + "\n")  # goes on without a key
    assert (dumps.folder / "program.py").read_text() == before + "\n"
    assert not read(dumps).is_ours


ASKED = (
    "double for v5e is not run: its dump was not made by you on this machine, or was changed "
    "since. Read the script, which is written without --run and --shrink, then pass --trust to run "
    "it in a confined process"
)


@pytest.mark.slow
def test_dumps_of_somebody_else(commands: Any, command: Any, dumps: Dumps, tmp_path: Path) -> None:
    (dumps.folder / "program.py.hmac").unlink()
    hostile = shutil.copytree(dumps.root, tmp_path / "hostile")
    (program,) = hostile.glob("*/program.py")
    program.write_text(in_kernel(f"exec({WRITE!r})"))
    ran, shrunk, written, *refused = commands(
        ["reproduce", dumps.root, "--run"],
        ["reproduce", dumps.root, "--shrink", "-o", "small.py"],
        ["reproduce", dumps.root],
        ["reproduce", hostile, "--run", "--trust"],
        ["reproduce", hostile, "--shrink", "--trust"],
        ["reproduce", hostile],
    )
    for done in (ran, shrunk):
        assert (done.returncode, done.stdout, done.stderr) == (3, "", f"pallas-debug: {ASKED}\n")
    assert not (tmp_path / "small.py").exists()
    assert (written.returncode, written.stderr) == (0, "")
    assert written.stdout.startswith("# -*- coding: utf-8 -*-\n# The kernel 'double', with jax ")
    for done in refused:
        assert (done.returncode, done.stdout) == (3, "")
        assert (
            "the dump's program is refused at line 18: this is not a function that" in done.stderr
        )
        assert f"in `exec({WRITE!r})`." in done.stderr
        assert "Traceback" not in done.stderr
    trusted = command("reproduce", dumps.root, "--run", "--trust", "-o", "again.py")
    assert trusted.returncode == 0, trusted.stderr
    assert "double for v5e: the same failure, at lowering: " in trusted.stderr
    assert list(tmp_path.rglob(CANARY)) == []


def test_the_question(dumps: Dumps, tmp_path: Path) -> None:
    dumps.change("kernel.json", name="do\x1b[2J\u202euble")
    (dumps.folder / "program.py.hmac").unlink()
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [Path(sys.executable).with_name("pallas-debug"), "reproduce", dumps.root, "--run"],
        stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path,
    )  # fmt: skip
    os.close(theirs)
    os.write(ours, b"\n")
    said = b""
    try:
        while part := os.read(ours, 4096):
            said += part
    except OSError:  # the end, of a terminal
        pass
    os.close(ours)
    assert child.wait(60) == 3
    text = said.decode()
    shown = printable("do\x1b[2J\u202euble for v5e")
    assert f"pallas-debug: the dump of {shown} was not made by you on this machine" in text
    assert "its origin is unknown." in text
    assert "Run its kernel in a confined process? [y/N]:" in text
    assert "is not run: you did not agree to it" in text
    assert "\x1b" not in text
    assert "\u202e" not in text


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
