"""Page on the dump format."""

from __future__ import annotations

import importlib

from generator.markdown import docstring, page, table
from generator.objects import fields_table, reachable


def dump_format() -> str:
    from pallas_debug.store import layout, schema, scratch

    files = layout.STAGE_FILES
    tree = [
        "dumps/",
        "  <kernel>-<8 hex>/        a kernel at its shapes",
        f"    {layout.KERNEL:23}the kernel: Kernel",
        f"    {files['jaxpr']:23}its jaxpr, with the source line of every equation",
        f"    {files['source']:23}the file of the kernel function",
        f"    {layout.PROGRAM:23}the kernel as a program that needs only jax",
        f"    {layout.BLOCKS:23}which block of each operand every grid point touches: BlockMap",
        "    <target>/              v5e, v6e, …; v5e-2x4 for the topology v5e:2x4; tpu",
        f"      {layout.COMPILATION:21}the compiler's result: Compilation",
        f"      {files['stablehlo']:21}the module that jax hands to the compiler",
        f"      {files['mosaic']:21}the kernel's own module, before any pass",
        f"      {layout.PASSES + '/':21}03-infer-memref-layout-simplify.mlir …",
        f"      {layout.LLO + '/':21}the LLO compiler's passes, with `--stages llo`",
        f"      {layout.SCHEDULE + '/':21}the VLIW schedule",
        f"      {layout.LOG:21}the compiler's output",
        f"  {layout.RUNS + '/<run>/<name>.json':25}kernels of a test or script: RunRecord",
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
        f"- A folder is created under `{layout.TMP}/`, flushed to the disk, and then renamed, so "
        "that a reader never finds a partial folder, not even after a kill or a power failure. "
        "To replace a compilation, the old one is moved to "
        f"`{layout.TMP}/` first; after a kill at that moment it is missing, and the next run "
        "compiles it again. "
        f"The files of a kernel are replaced one by one, `{layout.KERNEL}` last; after a kill in "
        "between, the next run replaces the rest.\n"
        f"- `{layout.COMPILATION}` is written last and records the size and the SHA-256 of every "
        "other file in its folder. A compilation is taken from the cache only if all of them are "
        "as recorded.\n"
        f"- `{layout.LOCKS}/` holds the locks by which processes compile each kernel once. "
        "A folder under "
        f"`{layout.TMP}/` holds a lock (`{layout.LOCK}`) as long as its process lives, and is "
        "deleted by the next run after that. If locks cannot decide, because the file system has "
        "none or the folder was created on another host, it is deleted "
        f"{scratch.ABANDONED_AFTER / 3600:g} hours after its last change. "
        "Both directories may be deleted while nothing is running.",
        "## Documents",
        f"Every JSON document begins with `tool` (`{schema.TOOL!r}`), `kind` and `schema`. A "
        "document with a newer schema is refused with an error.",
        table(
            ["kind", "schema", "file", "holds"],
            [
                [
                    f"`{kind}`",
                    str(schema.SCHEMA),
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
    for kind in reachable(schema.KINDS):
        parts += [f"### {kind.__name__}", *docstring(kind), fields_table(kind)]
    parts += [
        "## Raw dumps",
        *docstring(importlib.import_module("pallas_debug.store.raw")),
        "Every reading command accepts such a directory. Its only target is called "
        f"`{layout.RAW_TARGET}`; a second compile of the same kernel in it is `<kernel>#2`.",
    ]
    return page("Dump format", "pallas_debug/model.py and pallas_debug/store/", parts)
