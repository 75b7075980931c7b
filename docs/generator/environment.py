"""Page on environment variables."""

from __future__ import annotations

import re

from generator import ROOT
from generator.markdown import page, table

VARIABLES = {
    "LIBTPU_INIT_ARGS": "Flags for libtpu, passed to every compilation and part of the cache key; "
    "`--xla_mosaic_dump_to` is dropped, as each compilation has its own directory.",
    "TPU_LIBRARY_PATH": "A libtpu other than the installed one.",
    "XLA_FLAGS": "Passed to compilations for GPUs, except flags about dumps, and part of their "
    "cache key.",
    "PATH": "`ptxas` and `nvdisasm` are taken from it if NVIDIA's packages are not installed.",
    "PYTHONPATH": "Passed to the compiler's process.",
    "TERM": "`dumb` turns the progress line and colours off.",
    "NO_COLOR": "If set and not empty, disables colours.",
    "VISUAL": "The editor in which `browse` opens sources and texts, before `EDITOR`. It is split "
    "into arguments like a shell command, and run without a shell.",
    "EDITOR": "The editor of `browse`, if `VISUAL` is unset; it is run in the same way.",
    "PALLAS_MAX_MEMORY": "Maximum memory in GiB of a process that runs kernels on the kernel "
    "machine, which stops a kernel at that limit; 80 % of the computer's memory if unset.",
    "PALLAS_TRACEBACK": "If set and not empty, a command that ends in an internal error "
    "prints the traceback, and no frame of pallas-debug is removed from your own tracebacks.",
    "JAX_TRACEBACK_FILTERING": "`off` keeps pallas-debug's frames in tracebacks, as does "
    "`PALLAS_TRACEBACK`.",
    "TMUX": "If set, copied text is also passed through tmux.",
    "STY": "If set, copied text is passed through screen.",
}
"""Variables that the code reads, besides those of the pytest plugin."""


THEIRS = {
    "JAX_PLATFORMS": "As for any jax program. If it is unset and the machine has no TPU, jax "
    "does not search for one.",
}
"""Variables that jax reads, and that affect pallas-debug."""


def environment() -> str:
    from pallas_debug_pytest.options import OPTIONS

    from pallas_debug.compiler import child

    undescribed = _variables_read() - set(VARIABLES)
    if undescribed:
        raise SystemExit(
            f"docs/generate.py: the code reads {', '.join(sorted(undescribed))}; "
            "describe them in VARIABLES of docs/generator/environment.py"
        )
    described = sorted((VARIABLES | THEIRS).items())
    parts = [
        "## Read",
        table(["variable", "meaning"], [[f"`{n}`", text] for n, text in described]),
        "## Of the pytest plugin",
        "Equivalents of the [pytest options](pytest-options.md); read only by the plugin.",
        table(
            ["variable", "as"],
            [[f"`{o.environment}`", f"`{o.flag}`"] for o in OPTIONS],
        ),
        "## Set in the compiler's process",
        "It inherits the environment except `XLA_FLAGS`, with these variables added. Your own "
        "process is not changed.",
        table(
            ["variable", "value"],
            [[f"`{n}`", f"`{v}`"] for n, v in child._QUIET.items()]
            + [
                [
                    "`LIBTPU_INIT_ARGS`",
                    f"yours, `{' '.join(child.MOSAIC_FLAGS)}` and a dump directory",
                ]
            ],
        ),
    ]
    return page("Environment", "pallas_debug/compiler/pool.py and the plugin's options", parts)


def _variables_read() -> set[str]:
    read = re.compile(r"""os\.environ(?:\.get\(|\[)\s*["']([A-Z_]+)["']""")
    sources = [*(ROOT / "pallas_debug").rglob("*.py"), *(ROOT / "pytest_plugin").rglob("*.py")]
    return {name for source in sources for name in read.findall(source.read_text())}
