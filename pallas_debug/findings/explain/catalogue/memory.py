"""VMEM, SMEM and HBM exhaustion, at compile time and at run time."""

from __future__ import annotations

from pallas_debug.findings.explain.catalogue.record import JAX, PALLAS, entry

ENTRIES = (
    entry(
        "scoped-vmem-overflow",
        "exceeded scoped vmem limit by",
        code="E1001",
        name="CompileTimeScopedVmemOom",
        title="the kernel needs more VMEM than one kernel may use",
        cause="the blocks of all operands, twice each where they are pipelined, with scratch and "
        "what the compiler spills, are larger than the VMEM that one kernel may use: by default "
        "16 MiB on v5e and v5p, 32 MiB on v6e and tpu7x",
        advice="make the blocks smaller; or raise the limit with "
        "pltpu.CompilerParams(vmem_limit_bytes=…) where the chip has more VMEM; or pass "
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
        advice="tile the largest operands further, the contracted dimension too; keep one buffer "
        "with pl.Buffered(1); or leave the operand in HBM and copy slices of it",
        kind="VmemOverflow",
        links=(PALLAS + "tpu/pipelining.html",),
    ),
    entry(
        "smem-overflow",
        "Allocation (size=…) would exceed memory (size=…space=smem",
        "Exceeded smem capacity by",
        title="scalar operands do not fit into SMEM",
        cause="scalar prefetch operands and SMEM blocks are in SMEM as a whole, which has 1 MiB",
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
        cause="arguments, outputs and temporaries of the whole program, not of one kernel, are "
        "larger than the chip's HBM",
        advice="make the batch smaller, shard the arrays over more chips, donate arguments "
        "(donate_argnums) or rematerialise (jax.checkpoint)",
        versions="with a code since libtpu 0.0.50",
    ),
    entry(
        "buffer-allocation",
        "Error allocating device buffer:",
        code="E0100",
        name="RuntimeBufferAllocationFailure",
        title="HBM has no room for an array while the program runs",
        cause="the array is larger than the free memory, or no free piece of HBM is large enough",
        advice="drop references to arrays that are not needed, donate arguments, make the batch "
        "smaller; tpu_log_allocations_on_oom lists what is allocated",
    ),
    entry(
        "program-allocation",
        "Error loading program…: Attempting to ",
        code="E0101",
        name="RuntimeProgramAllocationFailure",
        title="HBM has no room for a program while it is loaded",
        cause="arrays come before programs: what they leave free is too little or in pieces",
        advice="free arrays, load fewer programs at a time, or make the program's temporaries "
        "smaller; tpu_log_allocations_on_oom lists what is allocated",
    ),
    entry(
        "program-input",
        "but got buffer with incompatible size",
        code="E0102",
        name="RuntimeProgramInputMismatch",
        title="an argument has a different size in memory than the program was compiled for",
        cause="the program was compiled for other layouts: with other XLA flags, another libtpu "
        "or another topology than this run has",
        advice="compile on the topology, with the flags and the libtpu that run it; do not load an "
        "executable that another version wrote",
    ),
    entry(
        "host-offload-output",
        "is returned from the entry computation but the layout for this output is not set to host",
        code="E1200",
        name="CompileTimeHostOffloadOutputLocationMismatch",
        title="an array in host memory is returned as if it were on the device",
        cause="it was moved to the host and not back, and the output's memory kind is not host",
        advice="set the output's sharding to a host memory kind, or move the array back with "
        "jax.device_put before it is returned. An array that is updated after it was moved (.at, "
        "dynamic_update_slice, a scan's outputs) stays on the host",
    ),
    entry(
        "sparsecore-allocation",
        "current allocation offset upper bound (",
        code="E3000",
        name="CompileTimeSparseCoreAllocationFailure",
        title="a SparseCore program needs more memory than the core has",
        cause="scratch of a SparseCore kernel, or the limits of an embedding, are too large for "
        "the memory space that the message names. Older ones number it: 0 SMEM, 201 TileSpmem, 202 "
        "Spmem, 203 HBM. Of Spmem each of 16 subcores has a part, which its VMEM scratch is in",
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
        title="an embedding lookup does not fit into SparseCore memory however it is split",
        cause="sample_count, feature_width and the maximum of entries per row are too large",
        advice="estimate max_nz_per_row and max_unique_nz_per_row closer, or "
        "make the batch smaller",
        targets=("v5p", "v6e", "tpu7x"),
    ),
)
