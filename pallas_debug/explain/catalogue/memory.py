"""VMEM, SMEM and HBM exhaustion, at compile time and at run time."""

from __future__ import annotations

from pallas_debug.explain.catalogue.record import JAX, PALLAS, entry

ENTRIES = (
    entry(
        "scoped-vmem-overflow",
        "exceeded scoped vmem limit by",
        code="E1001",
        name="CompileTimeScopedVmemOom",
        title="the kernel needs more VMEM than one kernel may use",
        cause="the blocks of all operands (doubled if pipelined), scratch and spilled registers "
        "exceed the VMEM that one kernel may use: by default 16 MiB on v5e and v5p, 32 MiB "
        "on v6e and tpu7x",
        advice="make the blocks smaller; raise the limit with "
        "pltpu.CompilerParams(vmem_limit_bytes=…) if the chip has more VMEM; or pass "
        "pipeline_mode=pl.Buffered(1) for blocks that rarely change",
        kinds=("VmemOverflow",),
        links=(PALLAS + "tpu/pipelining.html", JAX + "38988"),
    ),
    entry(
        "vmem-capacity",
        "Exceeded vmem capacity by",
        "Allocation (size=…) would exceed memory (size=…space=vmem",
        title="the kernel needs more VMEM than the chip has",
        cause="blocks and scratch together are larger than all of the chip's VMEM: 16 MiB on v4, "
        "64 MiB on v5p and tpu7x, 128 MiB on v5e and v6e. A higher vmem_limit_bytes does not help",
        advice="tile the largest operands further, including the contracted dimension; use a "
        "single buffer with pl.Buffered(1); or leave the operand in HBM and copy slices of "
        "it",
        kind="VmemOverflow",
        links=(PALLAS + "tpu/pipelining.html",),
    ),
    entry(
        "smem-overflow",
        "Allocation (size=…) would exceed memory (size=…space=smem",
        "Exceeded smem capacity by",
        title="scalar operands do not fit into SMEM",
        cause="scalar-prefetch operands and SMEM blocks are kept in SMEM in full, which has 1 MiB",
        advice="keep long tables in HBM and copy the part that a grid point needs; or prefetch "
        "fewer, smaller or narrower entries",
        kinds=("SmemOverflow",),
    ),
    entry(
        "hbm-overflow",
        "Ran out of memory on HBM",
        "Exceeded hbm capacity by",
        code="E1000",
        name="CompileTimeHbmOom",
        title="the program needs more HBM than the chip has",
        cause="arguments, outputs and temporaries of the whole program, not only of one kernel, "
        "exceed the chip's HBM",
        advice="make the batch smaller, shard the arrays over more chips, donate arguments "
        "(donate_argnums) or rematerialise (jax.checkpoint)",
        versions="with an error code since libtpu 0.0.50",
    ),
    entry(
        "buffer-allocation",
        "Error allocating device buffer:",
        code="E0100",
        name="RuntimeBufferAllocationFailure",
        title="HBM has no space for an array while the program runs",
        cause="the array is larger than the free memory, or no contiguous free part of HBM is "
        "large enough",
        advice="drop references to arrays that are no longer needed, donate arguments, or make "
        "the batch smaller; tpu_log_allocations_on_oom lists all allocations",
    ),
    entry(
        "program-allocation",
        "Error loading program…: Attempting to ",
        code="E0101",
        name="RuntimeProgramAllocationFailure",
        title="HBM has no space to load a program",
        cause="arrays were allocated first: the space that they leave is too small or fragmented",
        advice="free arrays, load fewer programs at a time, or make the program's temporaries "
        "smaller; tpu_log_allocations_on_oom lists all allocations",
    ),
    entry(
        "program-input",
        "but got buffer with incompatible size",
        code="E0102",
        name="RuntimeProgramInputMismatch",
        title="an argument's size in memory differs from the one that the program was compiled for",
        cause="the program was compiled for different layouts: with different XLA flags, libtpu "
        "or topology than in this run",
        advice="compile with the topology, flags and libtpu of the run; do not load an executable "
        "written by another version",
    ),
    entry(
        "host-offload-output",
        "is returned from the entry computation but the layout for this output is not set to host",
        code="E1200",
        name="CompileTimeHostOffloadOutputLocationMismatch",
        title="an array in host memory is returned as if it were on the device",
        cause="the array was moved to the host but not back, and the output's memory kind is not "
        "host",
        advice="set the output's sharding to a host memory kind, or move the array back with "
        "jax.device_put before it is returned. An array that is updated after the move "
        "(.at, dynamic_update_slice, a scan's outputs) stays on the host",
    ),
    entry(
        "sparsecore-allocation",
        "current allocation offset upper bound (",
        code="E3000",
        name="CompileTimeSparseCoreAllocationFailure",
        title="a SparseCore program needs more memory than the core has",
        cause="the scratch of a SparseCore kernel, or the limits of an embedding, are too large "
        "for the memory space that the message names. Older messages number it: 0 SMEM, 201 "
        "TileSpmem, 202 Spmem, 203 HBM. Each of the 16 subcores has a part of Spmem, which "
        "holds its VMEM scratch",
        advice="make scratch_shapes smaller; for embeddings lower max_ids_per_partition; "
        "--xla_sc_dump_mlir_to shows which allocation it is",
        targets=("v5p", "v6e", "tpu7x"),
    ),
    entry(
        "sparsecore-replicas",
        "No viable logical replica count for the embedding table",
        "Can't fit a single row. TileSpmem bytes",
        code="E3001",
        name="CompileTimeSparseCoreInvalidReplicaCount",
        title="an embedding lookup does not fit into SparseCore memory, however it is split",
        cause="sample_count, feature_width and the maximum number of entries per row are too large",
        advice="use tighter estimates of max_nz_per_row and max_unique_nz_per_row, or make the "
        "batch smaller",
        targets=("v5p", "v6e", "tpu7x"),
    ),
)
