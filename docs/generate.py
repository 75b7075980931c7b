"""Writes the pages of `docs/reference/`, and the architecture maps, from the code.

python docs/generate.py             writes them
python docs/generate.py --check     names the pages that are stale, and then exits with 1
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import itertools
import re
import sys
import textwrap
import tomllib
import typing
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"

for root in (ROOT, ROOT / "kernels", ROOT / "pytest_plugin"):
    sys.path.insert(0, str(root))


def cli() -> str:
    """Commands and their options, read from click."""
    from pallas_debug.cli.group import COMMANDS
    from pallas_debug.cli.group import cli as group

    context = click.Context(group, info_name="pallas-debug")
    parts = [
        "Data goes to standard output, messages to standard error. Every command that reports "
        "takes `--json`. Tables are tab-separated if the output is not a terminal. "
        "See also the [exit codes](exit-codes.md).",
        table(
            ["command", "what it does"],
            [[f"[`{name}`](#{name})", text] for name, text in COMMANDS.items()],
        ),
    ]
    for name in COMMANDS:
        command = group.get_command(context, name)
        assert command is not None
        parts += _command(name, command, context)
    return page("Commands", "pallas_debug/cli/", parts)


def _command(name: str, command: click.Command, context: click.Context) -> list[str]:
    child = click.Context(command, info_name=name, parent=context)
    usage = " ".join(["pallas-debug", name, *command.collect_usage_pieces(child)])
    parts = [f"## {name}", f"```text\n{usage}\n```", *_click_help(command.help or "")]
    rows = []
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            value = "" if parameter.is_flag else f" {_value(parameter.type)}"
            names = sorted(parameter.opts, key=len)
            default = parameter.default if parameter.show_default else None
            if isinstance(default, list | tuple):
                default = ",".join(map(str, default))
            rows.append(
                [
                    ", ".join(f"`{o}{value if o == names[-1] else ''}`" for o in names),
                    parameter.help or "",
                    "" if default is None else f"`{default}`",
                ]
            )
    return [*parts, table(["option", "meaning", "default"], rows)] if rows else parts


def _click_help(text: str) -> list[str]:
    """Paragraphs; those that click is told to leave alone (`\\b`) become blocks."""
    parts = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if paragraph.startswith("\b\n"):
            parts.append(f"```text\n{textwrap.dedent(paragraph[2:])}\n```")
        else:
            parts.append(_linked(" ".join(paragraph.split())))
    return parts


def _value(kind: click.ParamType) -> str:
    if isinstance(kind, click.Choice):
        return "|".join(map(str, kind.choices))
    names = {"integer range": "N", "float range": "NUMBER"}
    return names.get(kind.name, kind.name.upper())


def exit_codes() -> str:
    from pallas_debug.cli.exits import MEANING, OUTCOMES

    rows = [[f"`{code.value}`", f"`{code.name}`", text] for code, text in MEANING.items()]
    outcomes = [[text, f"`{code.value}`"] for text, code in OUTCOMES.items()]
    return page(
        "Exit codes",
        "pallas_debug/cli/exits.py",
        [
            "What `pallas-debug` exits with.",
            table(["code", "name", "meaning"], rows),
            "An outcome has the same code in every command:",
            table(["outcome", "code"], outcomes),
        ],
    )


def pytest_options() -> str:
    from pallas_debug_pytest.options import OPTIONS

    rows = []
    for option in OPTIONS:
        value = f"[={option.metavar}]" if option.const else f"={option.metavar}"
        value = value if option.metavar else ""
        bare = f"`{option.const}`" if option.const else "a value is required"
        rows.append(
            [
                f"`{option.flag}{value}`",
                f"`{option.ini}`",
                f"`{option.environment}`",
                bare,
                option.help,
            ]
        )
    return page(
        "pytest options",
        "pytest_plugin/pallas_debug_pytest/options.py",
        [
            "Each option has three forms. The command line takes precedence over the environment, "
            "and the environment over the ini file. An empty value counts as none. "
            "See the [guide](../guides/pytest.md) for examples.",
            table(["command line", "ini", "environment", "bare flag", "meaning"], rows),
        ],
    )


def python() -> str:
    """The public API of `pallas_debug`."""
    import pallas_debug

    parts = [
        "The public API of `import pallas_debug`. The import does not load jax; names are imported "
        "lazily. The objects that these functions return are those of the files, and described "
        "under [dump format](dump-format.md).",
    ]
    verbs = ("debug", "interpret", "compile", "compare", "dump", "step", "breakpoint", "open_dumps")
    for name in verbs:
        parts += _function(f"pallas_debug.{name}", getattr(pallas_debug, name))
    from pallas_debug._api.compare import ComparisonReport
    from pallas_debug._api.compile import Compiled
    from pallas_debug.comparison.compare import ComparedOutput
    from pallas_debug.model import Dump
    from pallas_debug.session import Options, Session
    from pallas_debug.store import DumpReader, StoredCompilation, StoredKernel

    parts += ["## Objects"]
    kinds = (Dump, Compiled, ComparisonReport, ComparedOutput, Session, Options)
    kinds += (DumpReader, StoredKernel, StoredCompilation)
    for kind in kinds:
        parts += _class(kind)
    parts += ["## Exceptions", "All are in `pallas_debug.errors`."]
    errors = importlib.import_module("pallas_debug.errors")
    rows = [
        [f"`{n}`", f"`{e.__bases__[0].__name__}`", _first_line(e)]
        for n, e in vars(errors).items()
        if isinstance(e, type) and issubclass(e, Exception)
    ]
    parts.append(table(["exception", "is a", "raised for"], rows))
    return page("Python", "pallas_debug/__init__.py and what it exports", parts)


def _class(kind: type) -> list[str]:
    parts = [f"### {kind.__name__}", *docstring(kind)]
    if dataclasses.is_dataclass(kind):
        parts.append(_fields(kind))
    rows = []
    for name, member in vars(kind).items():
        if name.startswith("_") or (dataclasses.is_dataclass(kind) and name in _field_names(kind)):
            continue
        if isinstance(member, property) and member.__doc__:
            rows.append([f"`{name}`", f"`{_annotation(member.fget)}`", _first_line(member)])
        elif inspect.isfunction(member) and member.__doc__:
            signature = _call(member)
            rows.append([f"`{name}{signature}`", f"`{_annotation(member)}`", _first_line(member)])
    return [*parts, table(["member", "gives", "meaning"], rows)] if rows else parts


def _annotation(function: Callable[..., object] | None) -> str:
    return str(getattr(function, "__annotations__", {}).get("return", ""))


def _call(function: Callable[..., object]) -> str:
    names = [
        f"{name}=" if p.default is not p.empty else name
        for name, p in inspect.signature(function).parameters.items()
        if name != "self"
    ]
    return f"({', '.join(names)})"


def _function(name: str, function: Callable[..., object]) -> list[str]:
    return [f"## {name}", f"```python\n{_signature(function)}\n```", *docstring(function)]


def _signature(function: Callable[..., object]) -> str:
    signature = inspect.signature(function)
    rendered = [p.replace() for p in signature.parameters.values() if p.name != "self"]
    lines = []
    star = False
    for p in rendered:
        if (
            p.kind is p.KEYWORD_ONLY
            and not star
            and not any(q.kind is q.VAR_POSITIONAL for q in rendered)
        ):
            lines.append("*")
        star = star or p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        prefix = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        default = "" if p.default is p.empty else f" = {p.default!r}"
        lines.append(f"{prefix}{p.name}: {p.annotation}{default}")
    returns = "" if signature.return_annotation == "Any" else f" -> {signature.return_annotation}"
    one = f"{function.__name__}({', '.join(lines)}){returns}"
    if len(one) <= 80:
        return one
    body = "".join(f"    {line},\n" for line in lines)
    return f"{function.__name__}(\n{body}){returns}"


def dump_format() -> str:
    from pallas_debug.store import layout, origin, schema, scratch

    files = layout.STAGE_FILES
    tree = [
        "dumps/",
        "  <kernel>-<8 hex>/        a kernel at its shapes",
        f"    {layout.KERNEL:23}the kernel: Kernel",
        f"    {files['jaxpr']:23}its jaxpr, with the source line of every equation",
        f"    {files['source']:23}the file of the kernel function",
        f"    {layout.PROGRAM:23}the kernel as a program that needs only jax",
        f"    {layout.PROGRAM + layout.SIGNATURE:23}its signature",
        f"    {layout.BLOCKS:23}which block of each operand every grid point touches: BlockMap",
        "    <target>/              v5e, v6e, …; v5e-2x4 for the topology v5e:2x4; tpu",
        f"      {layout.COMPILATION:21}the compiler's result: Compilation",
        f"      {files['stablehlo']:21}the module that jax hands to the compiler",
        f"      {layout.STABLEHLO + layout.SIGNATURE:21}its signature",
        f"      {files['mosaic']:21}the kernel's own module, before any pass",
        f"      {layout.PASSES + '/':21}03-infer-memref-layout-simplify.mlir …",
        f"      {layout.LLO + '/':21}the LLO compiler's passes, with `--stages llo`",
        f"      {layout.SCHEDULE + '/':21}the VLIW schedule, with `--stages bundles`",
        f"      {layout.LOG:21}the compiler's output",
        f"  {layout.RUNS + '/<run>/<name>.json':25}kernels of a test or script: RunRecord",
        f"  {layout.SWEEPS + '/<sweep>/':25}results of a sweep, a file for each setting",
    ]
    parts = [
        "A dump directory consists of plain files: it can be searched with `grep`, copied, and "
        "read on a machine that has neither jax nor libtpu.",
        "## Folders",
        "```text\n" + "\n".join(tree) + "\n```",
        f"- Names of kernels, targets and tests become file names without separators and control "
        f"characters, of at most {layout.MAX_BYTES} bytes; a truncated one ends in a digest.\n"
        f"- `{layout.PASSES}/` holds the passes that changed something. "
        f"`{layout.COMPILATION}` lists all of them; one that changed nothing has the text of the "
        "pass before it.\n"
        f"- `{files['mosaic']}` and `{files['stablehlo']}` are absent if jax refused to lower "
        "the kernel. The passes of a failed compilation end with the one that failed.\n"
        f"- A file that ends in `{layout.SIGNATURE}` holds 64 hex digits: an HMAC-SHA256 over the "
        "kernel's digest and the file next to it, with a key that a user's first dump makes on "
        f"a machine and never leaves it (`$XDG_STATE_HOME/{'/'.join(origin.key_file().parts[-2:])}`"
        "). `reproduce` asks before it runs a dump without such a signature. It is absent if no "
        "key could be written.\n"
        f"- A folder is made under `{layout.TMP}/`, flushed to the disk, and then renamed, so "
        "that no reader finds half of one, and whatever a run reported as written survives a kill "
        "and a power failure. A replacement is exchanged with the old compilation in one step. "
        "On a file system that cannot exchange two folders (NFS, for one), the old one is moved "
        f"to `{layout.TMP}/` first; after a kill at that moment it is missing until the next run "
        "into the directory puts it back. "
        f"The files of a kernel are replaced one by one, `{layout.KERNEL}` last; after a kill in "
        "between, the next run replaces the rest.\n"
        f"- `{layout.COMPILATION}` is written last and records the size and the SHA-256 of every "
        "other file in its folder. A compilation is taken from the cache only if all of them are "
        "as recorded.\n"
        f"- `{layout.LOCKS}/` holds the locks by which processes compile each kernel once; while "
        "a lock is held, its file names the holder. A folder under "
        f"`{layout.TMP}/` holds a lock (`{layout.LOCK}`) as long as its process lives, and is "
        "deleted by the next run after that. Where no lock can tell, because the file system has "
        "none or the folder was made on another host or before a reboot, it is deleted once "
        f"nothing in it has changed for {scratch.ABANDONED_AFTER / 3600:g} hours. "
        "Both directories may be deleted while nothing is running.",
        "## Documents",
        f"Every JSON document begins with `tool` (`{schema.TOOL!r}`), `kind` and `schema`. A "
        "document with a newer schema is refused with an error; one with an older schema is read.",
        table(
            ["kind", "schema", "file", "holds"],
            [
                [
                    f"`{kind}`",
                    str(schema.VERSIONS[cls]),
                    f"`{file}`",
                    f"[{cls.__name__}](#{cls.__name__.lower()})",
                ]
                for (cls, kind), file in zip(
                    schema.KINDS.items(),
                    (
                        layout.KERNEL,
                        layout.COMPILATION,
                        f"{layout.RUNS}/…/*.json",
                        layout.BLOCKS,
                    ),
                    strict=True,
                )
            ],
        ),
    ]
    for kind in _reachable(schema.KINDS):
        parts += [f"### {kind.__name__}", *docstring(kind), _fields(kind)]
    parts += [
        "## Raw dumps",
        *docstring(importlib.import_module("pallas_debug.store.raw")),
        "Every command that reads takes such a directory. Its one target is called "
        f"`{layout.RAW_TARGET}`; a second compile of the same kernel in it is `<kernel>#2`.",
    ]
    return page("Dump format", "pallas_debug/model.py and pallas_debug/store/", parts)


def json_output() -> str:
    """Fields of the documents that commands print with `--json`."""
    from pallas_debug.cli import schemas
    from pallas_debug.cli.output import SCHEMAS
    from pallas_debug.store import schema

    parts = [
        "With `--json` a command prints one document on standard output. Its first field, "
        "`schema`, has the name and version of its format, such as `pallas-debug/ls/1`. The "
        "version goes up when a field is removed, renamed, or changes its type or meaning. New "
        "fields may appear at any time: ignore those that you do not know. Every field is "
        "always there, and `null` if it has no value.",
        "[Exit codes](exit-codes.md) are those without `--json`. `verify` and `explain` also take "
        "`--for-agents`, which prints the same facts as `key: value` lines.",
        table(
            ["command", "schema", "document"],
            [
                [f"`{name}`", f"`pallas-debug/{name}/{SCHEMAS[name]}`", _link(kind.__name__)]
                for name, kind in schemas.DOCUMENTS.items()
            ],
        ),
    ]
    of_dumps = _reachable(schema.KINDS)
    for kind in _reachable(schemas.DOCUMENTS.values()):
        if kind in of_dumps:
            continue
        parts += [f"## {kind.__name__}", *docstring(kind), _fields(kind)]
    shared = ", ".join(
        f"[{kind.__name__}](dump-format.md#{kind.__name__.lower()})" for kind in of_dumps
    )
    parts += ["## Shared with the dump format", f"{shared}."]
    return page("JSON output", "pallas_debug/cli/schemas.py", parts)


def _link(name: str) -> str:
    return f"[{name}](#{name.lower()})"


def llms() -> str:
    """`llms.txt`: what coding assistants need, and where the pages are."""
    from pallas_debug.cli import agents

    lines = [agents.guide(), "## Docs\n"]
    for title, path in _navigation():
        lines.append(f"- [{title}](docs/{path})")
    return "\n".join(lines) + "\n"


def _navigation() -> list[tuple[str, str]]:
    """Titles and paths of the pages, from `mkdocs.yml`."""
    text = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    return re.findall(r"^ *- ([^:\n]+): (\S+\.md)$", text, re.MULTILINE)


def _reachable(kinds: Iterable[type]) -> list[type]:
    """These dataclasses and those of their fields, each after the first that uses it."""
    found: list[type] = []

    def visit(kind: object) -> None:
        if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind not in found:
            found.append(kind)
            for used in typing.get_type_hints(kind).values():
                visit(used)
        for inner in typing.get_args(kind):
            visit(inner)

    for kind in kinds:
        visit(kind)
    return found


def _field_names(kind: type) -> set[str]:
    return {f.name for f in dataclasses.fields(kind)}


def _fields(kind: type) -> str:
    described = _attributes(kind)
    rows = []
    for f in dataclasses.fields(kind):
        default = ""
        if f.default is not dataclasses.MISSING:
            default = f"`{f.default!r}`"
        elif f.default_factory is not dataclasses.MISSING:
            default = f"`{f.default_factory()!r}`"
        rows.append([f"`{f.name}`", f"`{_type(str(f.type))}`", default, described.get(f.name, "")])
    return table(["field", "type", "default", "meaning"], rows)


def _type(text: str) -> str:
    """A type for readers of JSON, with the values of literals."""
    from pallas_debug import model

    if text in ("OperandKind", "Status", "Stage"):
        return str(getattr(model, text)).removeprefix("typing.")
    return text


def _attributes(kind: type) -> dict[str, str]:
    section = re.search(r"^Attributes:\n((?:  .*\n?|\n)+)", inspect.getdoc(kind) or "", re.M)
    return dict(_entries(section[1])) if section else {}


def hooks() -> str:
    from pallas_debug import hooks as module

    parts = [
        f"Hooks are [pluggy](https://pluggy.readthedocs.io)'s, under the project name "
        f"`{module.GROUP}`; a distribution registers a plugin under the entry-point group of the "
        "same name. They are called in the thread of the event. An implementation may take fewer "
        "arguments than the hook has. The [guide](../guides/extending.md) shows a complete plugin."
    ]
    for name, function in vars(module.Specs).items():
        if name.startswith("_"):
            continue
        opts = getattr(function, f"{module.GROUP}_spec")
        first = "The first result that is not `None` counts." if opts["firstresult"] else None
        parts += [
            f"## {name}",
            f"```python\n{_signature(function)}\n```",
            *docstring(function),
            *filter(None, [first]),
        ]
    return page("Hooks", "pallas_debug/hooks.py", parts)


def targets() -> str:
    from pallas_debug.compiler import targets as module

    rows = [
        [
            f"`{t.name}`",
            f"`{t.topology}`" if t.topology else "",
            t.device_kind or "",
            str(t.num_cores) if t.topology else "",
            t.summary,
        ]
        for t in module.known()
    ]
    return page(
        "Targets",
        "pallas_debug/compiler/targets.py",
        [
            "Values of `--target`, `--pallas-target` and `targets=`, separated by commas.",
            table(["target", "topology", "device kind", "cores per device", ""], rows),
            "`all` is every generation. A full topology name is a target too: a generation of the "
            "table, a colon and its shape, such as `v5e:2x4` or `v5p:2x2x2`. A kernel under "
            "`shard_map` gets a topology with as many devices as its mesh; a target that names its "
            "whole topology keeps it.",
        ],
    )


def interpreters() -> str:
    from pallas_debug.bridge.interpret.limits import LIMITS

    return page(
        "What the interpreters simulate",
        "pallas_debug/bridge/interpret/limits.py",
        [
            "Features of TPUs, and what becomes of a kernel that uses them in each "
            "[interpret mode](../guides/interpret.md). A test runs a kernel per row.",
            table(
                ["TPU feature", "HLO interpret mode", "TPU interpret mode"],
                [[limit.name, limit.hlo, limit.tpu] for limit in LIMITS],
            ),
            '"no": the kernel is rejected. "yes": it runs as on a TPU; "with pallas-debug", '
            'because pallas-debug adds what jax lacks. "silent": the fault goes unnoticed; on a '
            "TPU it is wrong values, a compile error or a hang.",
        ],
    )


def switches() -> str:
    from pallas_debug.compiler import switches as module

    takers = {"compile": "libtpu", "lowering": "jax"}
    rows = [
        [f"`{s.name}`", s.summary, s.cost, f"`{s.option}={s.value}`, by {takers[s.where]}", s.since]
        for s in module.SWITCHES.values()
    ]
    return page(
        "Switches",
        "pallas_debug/compiler/switches.py",
        [
            "Values of `--switch` (separated by commas, or repeated) and `switches=`, and "
            "arguments of `pallas_debug.compile`. "
            "See the [guide](../guides/compiling.md#switches) for examples.",
            table(["switch", "on a TPU", "cost", "what is set", "tried from"], rows),
            "Switches are part of the cache key, and `show` prints those of a compilation. With "
            "one that the installed libtpu or jax does not know, the compilation fails, and the "
            "failure names it.",
        ],
    )


def keys() -> str:
    """The keys of the terminal UI, from its registry of actions."""
    from pallas_debug.tui.app import registry
    from pallas_debug.tui.keys import HEADINGS, MOVING, display_keys
    from pallas_debug.tui.panes.dialogs import moving_keys

    parts = [
        "Keys of `pallas-debug browse`. `?` shows the same, with your own keys and those of the "
        "focused pane; `ctrl+p` lists every action by title. Use the names of actions in "
        "[your keymap](../guides/browse.md#keys-of-your-own).",
        f"## {MOVING}",
        "In every list and text, and in the help. These are not in the keymap, which takes "
        "precedence.",
        table(["keys", "what they do"], [[_keys(keys), what] for keys, what in moving_keys()]),
    ]
    groups: dict[str, list[list[str]]] = {}
    for action in registry().values():
        heading = HEADINGS.get(action.group, action.group.capitalize())
        row = [_keys(display_keys(action.keys)), action.title, f"`{action.name}`"]
        groups.setdefault(heading, []).append(row)
    for heading, rows in groups.items():
        parts += [f"## {heading}", table(["keys", "what they do", "action"], rows)]
    return page("Keys", "pallas_debug/tui/commands/", parts)


def _keys(text: str) -> str:
    return " ".join(f"`{key}`" for key in text.split()) or "palette"


VARIABLES = {
    "LIBTPU_INIT_ARGS": "Flags for libtpu, passed to every compilation and part of the cache key; "
    "`--xla_mosaic_dump_to` is dropped, as each compilation has its own directory.",
    "TPU_LIBRARY_PATH": "A libtpu other than the installed one.",
    "JAX_COMPILATION_CACHE_DIR": "Has no effect on captures or compilations; `doctor` mentions it.",
    "JAX_XLA_PROFILE_VERSION": "As for any jax program: part of XLA's options for every kernel.",
    "PYTHONPATH": "Passed to the compiler's process.",
    "TERM": "`dumb` turns the progress line and colours off.",
    "NO_COLOR": "If set and not empty, disables colours.",
    "GITHUB_STEP_SUMMARY": "Set in a GitHub job: the file to which pytest adds its table of "
    "kernels that were compared with their baselines.",
    "VISUAL": "The editor in which `browse` opens sources and texts, before `EDITOR`. It is split "
    "into arguments like a shell command, and run without a shell.",
    "EDITOR": "The same, if `VISUAL` is unset.",
    "PAGER": "The pager of `browse` (key `|`); `less -R` if unset.",
    "XDG_STATE_HOME": "Its folder `pallas-debug/` holds the position in `browse`, reports of its "
    "crashes, and the key that signs dumps; `~/.local/state` if unset.",
    "PALLAS_TRACEBACK": "If set and not empty, a command that ends in an internal error "
    "prints the traceback, and no frame of pallas-debug is removed from your own tracebacks.",
    "JAX_TRACEBACK_FILTERING": "`off`: as `PALLAS_TRACEBACK`, for the frames of tracebacks.",
    "XDG_CONFIG_HOME": "Its file `pallas-debug/browse.toml` holds your own keys; `~/.config` if "
    "unset.",
    "TMUX": "If set, copied text is also passed through tmux.",
    "STY": "If set, copied text is passed through screen.",
}
"""Variables that the code reads, besides those of the pytest plugin."""

THEIRS = {
    "JAX_PLATFORMS": "As for any jax program. If it is unset and the machine has no TPU, jax "
    "does not search for one.",
    "JAX_OPTIMIZATION_LEVEL": "As for any jax program: part of XLA's options for every kernel.",
    "JAX_MEMORY_FITTING_LEVEL": "As for any jax program: part of XLA's options for every kernel.",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "As for any jax program: part of XLA's options for every "
    "kernel.",
    "JAX_COMPILER_ENABLE_REMAT_PASS": "As for any jax program: part of XLA's options for every "
    "kernel.",
}
"""Variables that others read, and that matter here."""


def environment() -> str:
    from pallas_debug_pytest.options import OPTIONS

    from pallas_debug.compiler import pool

    undescribed = _variables_read() - set(VARIABLES)
    if undescribed:
        raise SystemExit(
            f"docs/generate.py: the code reads {', '.join(sorted(undescribed))}; "
            "say in VARIABLES what for"
        )
    described = sorted((VARIABLES | THEIRS).items())
    parts = [
        "## Read",
        table(["variable", "meaning"], [[f"`{n}`", text] for n, text in described]),
        "## Of the pytest plugin",
        "Equivalents of the [pytest options](pytest-options.md); read only by the plugin. The "
        "former names begin with `PALLAS_DEBUG_` in place of `PALLAS_`: they still work, with a "
        "`DeprecatedNameWarning`.",
        table(
            ["variable", "as"],
            [[f"`{o.environment}`", f"`{o.flag}`"] for o in OPTIONS],
        ),
        "## Set in the compiler's process",
        "It inherits the environment except `XLA_FLAGS`, with these variables added. Your own "
        "process is not changed.",
        table(
            ["variable", "value"],
            [[f"`{n}`", f"`{v}`"] for n, v in pool._QUIET.items()]
            + [
                [
                    "`LIBTPU_INIT_ARGS`",
                    f"yours, `{' '.join(pool.MOSAIC_FLAGS)}` and a dump directory",
                ]
            ],
        ),
    ]
    return page("Environment", "pallas_debug/compiler/pool.py and the plugin's options", parts)


def _variables_read() -> set[str]:
    read = re.compile(r"""os\.environ(?:\.get\(|\[)\s*["']([A-Z_]+)["']""")
    sources = [*(ROOT / "pallas_debug").rglob("*.py"), *(ROOT / "pytest_plugin").rglob("*.py")]
    return {name for source in sources for name in read.findall(source.read_text())}


# Text.


def errors() -> str:
    """The catalogue of explanations."""
    from pallas_debug.findings.explain import TOPICS

    parts = [
        "The catalogue of `pallas-debug explain`: known failures of kernels, with their cause and "
        "what to do. An entry is found by its id, by XLA's code, by the message or by the kind of "
        "a finding. See the [guide](../guides/explain.md) for examples.",
    ]
    for topic, entries in TOPICS.items():
        parts.append(f"## {topic}")
        for entry in entries:
            code = f" ({entry.code})" if entry.code else ""
            parts += [f"### {entry.id}{code}", f"{_sentence(entry.title)}"]
            rows = [
                ["cause", _prose(entry.cause)],
                ["what to do", _prose(entry.advice)],
                ["versions", _prose(entry.versions)],
                ["targets", ", ".join(f"`{target}`" for target in entry.targets)],
                ["findings", ", ".join(f"`{kind}`" for kind in entry.kinds)],
                ["links", ", ".join(f"<{link}>" for link in entry.links)],
            ]
            parts.append(table(["", "about it"], [row for row in rows if row[1]]))
    return page("Errors", "pallas_debug/findings/explain/catalogue/", parts)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _prose(text: str) -> str:
    """Escape the characters that have a meaning in Markdown."""
    return re.sub(r"([*_<>\[\]])", r"\\\1", text)


def advice() -> str:
    """Every piece of advice that `stats` gives."""
    from pallas_debug.profile.advice import KINDS

    parts = [
        "What `pallas-debug stats` and the report advise, and when. A piece of advice names its "
        "line, the evidence with the origin of each number, and the remedy. It is left out where "
        "the numbers that it needs are unknown.",
        table(
            ["advice", "title", "given when", "remedy"],
            [[f"`{k.name}`", k.title, k.condition, k.remedy] for k in KINDS],
        ),
    ]
    return page("Advice", "pallas_debug/profile/advice/", parts)


def findings() -> str:
    """Every kind of finding, by severity."""
    from pallas_debug.findings.faults import Fault, Severity, Sure

    parts = [
        "Kinds of findings, the worst first. The name is what reports, JSON, suppressions and "
        "`pallas.expect` use. Of the engines that see a fault, the first gives the message when "
        "several report it.",
        table(
            ["an engine knows a fault as", "meaning"],
            [[f"`{sure}`", _doc_below(Sure, sure.name)] for sure in Sure],
        ),
    ]
    for severity in Severity:
        faults = [fault for fault in Fault if fault.severity is severity]
        rows = [
            [
                f"`{fault}`",
                fault.summary,
                ", ".join(f"{engine} ({sure})" for engine, sure in fault.judges.items()),
            ]
            for fault in faults
        ]
        parts += [
            f"## {severity.name.capitalize()}",
            _doc_below(Severity, severity.name),
            table(["kind", "what happens", "engines"], rows),
        ]
    return page("Findings", "pallas_debug/findings/faults.py", parts)


def _doc_below(cls: type, member: str) -> str:
    """The string below a member of an enumeration."""
    (body,) = (node.body for node in ast.parse(inspect.getsource(cls)).body)
    for node, below in itertools.pairwise(body):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == member:
            return str(below.value.value)
    raise LookupError(f"{cls.__name__}.{member} has no docstring")


def page(title: str, source: str, parts: Sequence[str]) -> str:
    head = f"<!-- Written by docs/generate.py from {source}: edit that. -->"
    return "\n\n".join([head, f"# {title}", *parts]) + "\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, without columns that are empty in every row."""
    listed = [[" ".join(cell.replace("|", "\\|").split()) for cell in row] for row in rows]
    kept = [i for i in range(len(columns)) if any(row[i] for row in listed)]
    lines = [[columns[i] for i in kept], ["---"] * len(kept)]
    lines += [[row[i] for i in kept] for row in listed]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def docstring(thing: object) -> list[str]:
    """A docstring as Markdown: paragraphs, examples, and a table for `Args:` and the like."""
    parts: list[str] = []
    for paragraph in re.split(r"\n\n(?=\S)", inspect.getdoc(thing) or ""):
        head, _, rest = paragraph.partition("\n")
        if head == "Attributes:":
            continue  # in the table of fields
        if head in ("Args:", "Raises:"):
            column = "argument" if head == "Args:" else "raises"
            rows = [[f"`{name}`", text] for name, text in _entries(rest)]
            parts.append(table([column, ""], rows))
        elif head == "Returns:":
            parts.append(f"Returns: {' '.join(rest.split())}")
        elif "\n    " in "\n" + paragraph:
            parts += _with_examples(paragraph)
        else:
            parts.append(" ".join(paragraph.split()))
    return parts


def _with_examples(text: str) -> list[str]:
    parts = []
    for chunk in re.split(r"\n\n(?=    )|\n\n(?=\S)", text):
        if chunk.startswith("    "):
            parts.append(f"```python\n{textwrap.dedent(chunk)}\n```")
        else:
            parts.append(" ".join(chunk.split()))
    return parts


def _entries(text: str) -> list[tuple[str, str]]:
    """`name: text` entries of a section, which may go over several lines."""
    entries: list[tuple[str, str]] = []
    for line in inspect.cleandoc("\n" + text).splitlines():
        if line.startswith(" ") and entries:
            name, said = entries[-1]
            entries[-1] = (name, f"{said} {line.strip()}")
        elif line.strip():
            name, _, said = line.partition(": ")
            entries.append((name.lstrip("*").rstrip(":"), said))
    return entries


def _first_line(thing: object) -> str:
    paragraph = (inspect.getdoc(thing) or "").split("\n\n")[0]
    return " ".join(paragraph.split())


def _linked(text: str) -> str:
    """Escape words that Markdown would take for HTML or emphasis."""
    return text.replace("<", "&lt;")


def architecture(*, rooms: bool) -> str:
    """The packages in the order of the floors, each with the first line of its docstring.

    Args:
      rooms: whether packages within packages are listed.
    """
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = config["tool"]["importlinter"]["contracts"]
    floors = {
        contract["containers"][0]: [
            name.strip() for layer in contract["layers"] for name in layer.split("|")
        ]
        for contract in contracts
        if contract["type"] == "layers"
    }
    lines = ["pallas_debug/"]

    def visit(package: Path, dotted: str, depth: int) -> None:
        names = floors.get(dotted) or sorted(p.parent.name for p in package.glob("*/__init__.py"))
        for name in names:
            folder = package / name
            is_package = (folder / "__init__.py").is_file()
            if name.startswith("_v") or (depth > 1 and not is_package):
                continue
            path = folder / "__init__.py" if is_package else folder.with_suffix(".py")
            label = "  " * depth + name + ("/" if is_package else ".py")
            lines.append(f"{label:<18}{_says(path)}")
            if is_package and rooms:
                visit(folder, f"{dotted}.{name}", depth + 1)

    visit(ROOT / "pallas_debug", "pallas_debug", 1)
    for path in ("kernels/pallas_debug_kernels", "pytest_plugin/pallas_debug_pytest"):
        lines += [f"{path}/", f"  {_says(ROOT / path / '__init__.py')}"]
    return "```text\n" + "\n".join(lines) + "\n```"


def _says(path: Path) -> str:
    return (
        (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0].replace("`", "")
    )


BEGIN, END = "<!-- map -->\n", "<!-- /map -->"


def with_map(text: str, new: str) -> str:
    """A page with the text between the markers replaced."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no map to write: {BEGIN.strip()} … {END.strip()}")
    return f"{before}{begin}\n{new}\n\n{end}{after}"


MAPS: dict[str, bool] = {"README.md": False, "CONTRIBUTING.md": True}
"""Pages with a map; whether it has packages within packages."""


PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli,
    "exit-codes.md": exit_codes,
    "pytest-options.md": pytest_options,
    "python.md": python,
    "dump-format.md": dump_format,
    "hooks.md": hooks,
    "targets.md": targets,
    "switches.md": switches,
    "interpreters.md": interpreters,
    "environment.md": environment,
    "errors.md": errors,
    "findings.md": findings,
    "advice.md": advice,
    "keys.md": keys,
    "json.md": json_output,
}


def main(arguments: Sequence[str]) -> int:
    stale = []
    texts = {REFERENCE / name: write() for name, write in PAGES.items()}
    for name, rooms in MAPS.items():
        page_with_map = ROOT / name
        texts[page_with_map] = with_map(page_with_map.read_text(), architecture(rooms=rooms))
    texts[ROOT / "llms.txt"] = llms()
    for path, text in texts.items():
        if path.is_file() and path.read_text() == text:
            continue
        stale.append(path)
        if "--check" not in arguments:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    for path in stale:
        print(f"{'stale' if '--check' in arguments else 'written'}: {path.relative_to(ROOT)}")
    if stale and "--check" in arguments:
        print("run: python docs/generate.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
