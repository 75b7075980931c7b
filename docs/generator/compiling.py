"""Pages on targets, the compiler's switches, and what interpreters simulate."""

from __future__ import annotations

from generator.markdown import page, table


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
            "`auto` runs on the kernel machine what neither mode runs, and what the mode that "
            "it chose fails to trace.",
            "An array of 200 columns occupies 256 in HBM. A copy of whole tiles, such as that of "
            "the last block in `emit_pipeline`, takes along what is in the others: `auto` runs a "
            "kernel with such copies on the machine, which reports a `PaddingRead` if that makes "
            "a result NaN. In a result of whole tiles, what lies past the array's size is taken "
            "for padding as well, which the program drops.",
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
