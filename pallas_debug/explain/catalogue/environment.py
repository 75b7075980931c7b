"""Errors outside the kernel: versions, flags, processes and targets."""

from __future__ import annotations

from pallas_debug.explain.catalogue.record import JAX, PALLAS, entry

ENTRIES = (
    entry(
        "unknown-chip",
        "Unsupported TPU device kind",
        title="the code queries the TPU that it runs on, but there is none",
        cause="pltpu.get_tpu_info(), blocks of vectors, integer // and scalar stores query the "
        "chip while a kernel is lowered",
        advice="lower it with `pallas-debug dump`, which answers for the target; or within "
        "jax.sharding.use_abstract_mesh with an AbstractDevice",
    ),
    entry(
        "libtpu-too-old",
        "Pallas TPU requires a recent libtpu version",
        "Pallas TPU requires a libtpu version that's at most a month old",
        title="libtpu is older than this jax needs",
        cause="jax writes kernels in a format that only a newer libtpu can read",
        advice="install matching versions: pip install 'jax[tpu]'; `pallas-debug doctor` lists "
        "the installed ones",
    ),
    entry(
        "libtpu-skew",
        "found in dialect ('tpu') that does not allow unknown operations",
        "Unsupported Mosaic version",
        "Failed to deserialize the Mosaic module",
        "Failed to parse the Mosaic module",
        "Failed to retrieve the config.",
        "message xla.jellyfish.CustomCallConfig…no such field",
        "Failed to parse using StableHLO",
        "Mismatched PJRT plugin PJRT API version",
        title="libtpu cannot read what jax wrote",
        cause="one of them is too new for the other: the program, the kernel or its parameters "
        "are in a format that the older one does not know",
        advice="install matching versions: pip install 'jax[tpu]'",
        ambiguous=True,
    ),
    entry(
        "exported-kernel",
        "failed to legalize operation 'func.func'",
        "Static device assignment is undefined",
        title="an exported kernel is compiled with other versions or devices than its own",
        cause="a kernel that was serialised with jax.export is tied to its device assignment and "
        "to a libtpu of about the same age",
        advice="export it again with the versions that run it, and compile it for the same number "
        "of devices",
        links=(JAX + "34936",),
        ambiguous=True,
    ),
    entry(
        "too-few-devices",
        "No registered implementation for untyped custom call to xla.sdy.GlobalToLocalShape",
        title="a program for a mesh runs on fewer devices than the mesh has",
        cause="an AbstractMesh names no devices, and jax compiles for it whether or not enough "
        "exist",
        advice="run it on as many devices; on a CPU, set "
        "XLA_FLAGS=--xla_force_host_platform_device_count=N before jax is imported",
    ),
    entry(
        "libtpu-in-use",
        "Internal error when accessing libtpu multi-process lockfile",
        "libtpu.so already in use",
        "The TPU is already in use by process",
        title="another process is using libtpu",
        cause="only one process at a time can use a TPU; a process that died may have left its "
        "lock behind",
        advice="stop the other process. Processes that only compile can run in parallel with "
        "ALLOW_MULTIPLE_LIBTPU_LOAD=1, as those of pallas-debug do",
        links=(JAX + "10192",),
    ),
    entry(
        "unknown-topology",
        "Invalid TPU external name",
        "Your TPU topology name … is invalid",
        title="libtpu does not know a topology of this name",
        cause="topologies are written as in v5e:2x2, v5p:2x2x1, v6e:2x2 and tpu7x:2x2x1",
        advice="`pallas-debug targets` lists the names",
    ),
    entry(
        "no-accelerator-type",
        "could not determine TPU accelerator type",
        "could not determine TPU worker hostnames",
        title="libtpu looks for a TPU on this host, but there is none",
        cause="libtpu was loaded on a machine without a TPU; compiling does not need one",
        advice="ignore it if you only compile; TPU_SKIP_MDS_QUERY=1 avoids the wait. On a TPU "
        "host, set TPU_ACCELERATOR_TYPE",
        links=(JAX + "29069",),
        general=True,
    ),
    entry(
        "unknown-flag",
        "Unknown flag in XLA_FLAGS",
        "ERROR: Unknown command line flag 'xla_",
        title="a flag unknown to this XLA or libtpu, which ends the process",
        cause="flags of the TPU compiler go into LIBTPU_INIT_ARGS, all others into XLA_FLAGS; "
        "both sets change between releases",
        advice="move the flag to the other variable, or remove it",
    ),
    entry(
        "compile-option",
        "No such compile option",
        title="an option that can only be set as a process flag is passed to a single compilation",
        cause="lowered.compile(…) does not accept all libtpu flags, in particular not those for "
        "dumps",
        advice="set it in LIBTPU_INIT_ARGS before the process starts, or use `pallas-debug dump`",
    ),
    entry(
        "removed-name",
        "module 'jax.experimental.pallas.tpu' has no attribute",
        "module 'jax.experimental.pallas' has no attribute",
        "module 'jax.experimental.pallas.triton' has no attribute",
        "type object 'MemorySpace' has no attribute",
        "pl.dot was deprecated in JAX",
        kinds=("RemovedName",),
        title="a Pallas name that this jax does not have",
        cause="it was renamed, moved or removed, or is newer than this jax",
        advice="TPUCompilerParams is CompilerParams, TPUMemorySpace is MemorySpace; pltpu.ANY and "
        "pltpu.MemorySpace.ANY are pl.ANY; pl.load and pl.store are ref[…]; pltpu.repeat is "
        "jnp.tile; pl.dot is jnp.dot; semaphore_signal and semaphore_wait are in pl",
        versions="TPUCompilerParams until jax 0.8, pl.load until 0.9, pltpu.repeat until 0.10.1, "
        "pl.dot until 0.11",
        links=(PALLAS + "CHANGELOG.html",),
    ),
    entry(
        "removed-argument",
        "pallas_call() got an unexpected keyword argument",
        title="an argument that pallas_call does not take in this jax",
        cause="it was renamed or removed",
        advice="remove backend=: compiler_params select the backend; for other arguments, see the "
        "Pallas changelog",
        versions="backend= until jax 0.9",
        links=(PALLAS + "CHANGELOG.html",),
    ),
    entry(
        "kernel-argument",
        "kernel() got an unexpected keyword argument 'out_shape'",
        "kernel() got an unexpected keyword argument 'scratch_shapes'",
        title="an argument that pl.kernel does not take in this jax",
        cause="it was renamed",
        advice="write out_type= in place of out_shape=, and scratch_types= in place of "
        "scratch_shapes=",
        versions="out_shape= until jax 0.9",
        links=(PALLAS + "CHANGELOG.html",),
    ),
    entry(
        "parameters-dict",
        "pallas_call() got a dict as compiler_params",
        title="compiler parameters in a dict",
        cause="compiler_params is an object of the back end's class",
        advice="write pltpu.CompilerParams(…) in place of dict(mosaic=dict(…)), and "
        "CompilerParams(…) of jax.experimental.pallas.triton in place of dict(triton=dict(…))",
        versions="a dict until jax 0.4",
        links=(PALLAS + "CHANGELOG.html",),
    ),
    entry(
        "pipeline-indices",
        "'PipelineStep' object is not subscriptable",
        "cannot unpack non-iterable PipelineStep object",
        title="a pipeline's body that takes its step for a tuple of indices",
        cause="with _explicit_indices, newer jax passes a PipelineStep to the body of "
        "emit_pipeline instead of the indices themselves",
        advice="take the indices from it: step.index[0] is the one along the first grid axis",
        versions="a tuple until jax 0.10",
        links=(PALLAS + "CHANGELOG.html",),
    ),
)
