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
            "`all` selects every generation. A full topology name is a target too: a generation "
            "from the table, a colon and a shape, such as `v5e:2x4` or `v5p:2x2x2`. A kernel under "
            "`shard_map` is compiled for a topology with as many devices as its mesh, unless the "
            "target is a full topology name.",
        ],
    )


def interpreters() -> str:
    from pallas_debug.bridge.interpret.limits import LIMITS

    return page(
        "What the interpreters simulate",
        "pallas_debug/bridge/interpret/limits.py",
        [
            "TPU features, and how each [interpret mode](../guides/interpret.md) treats a kernel "
            "that uses them. A test runs a kernel for each row.",
            table(
                ["TPU feature", "HLO interpret mode", "TPU interpret mode"],
                [[limit.name, limit.hlo, limit.tpu] for limit in LIMITS],
            ),
            '"no": the kernel is rejected. "yes": it runs as on a TPU; "with pallas-debug", '
            'because pallas-debug adds what jax lacks. "silent": the fault goes unnoticed; on a '
            "TPU it causes wrong values, a compile error or a hang.",
            "`auto` runs a kernel on the kernel machine if neither mode can run it, or if the "
            "selected mode fails to trace it.",
            "An array of 200 columns occupies 256 columns in HBM. A copy of whole tiles, such as "
            "the last block in `emit_pipeline`, includes the other 56: `auto` runs a kernel with "
            "such copies on the machine, which reports a `PaddingRead` if this padding makes a "
            "result NaN. In a result of whole tiles, elements past the array's size also count as "
            "padding, which the program drops.",
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
            "Switches are part of the cache key, and `show` prints those of a compilation. If the "
            "installed libtpu or jax does not know a switch, the compilation fails with a message "
            "that names it.",
        ],
    )
