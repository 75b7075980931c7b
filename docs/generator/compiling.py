"""Pages on targets and the compiler's switches."""

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
            "See the [guide](../guides/dumping.md#switches) for examples.",
            table(["switch", "on a TPU", "cost", "what is set", "tried from"], rows),
            "Switches are part of the cache key, and `show` prints those of a compilation. If the "
            "installed libtpu or jax does not know a switch, the compilation fails with a message "
            "that names it.",
        ],
    )
