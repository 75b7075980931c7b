"""Errors outside the kernel: versions, flags, processes and targets."""

from __future__ import annotations

from pallas_debug.findings.explain.catalogue.record import JAX, PALLAS, entry

ENTRIES = (
    entry(
        "unknown-chip",
        "Unsupported TPU device kind",
        title="the code asks which TPU it runs on, and there is none",
        cause="pltpu.get_tpu_info(), blocks of vectors, integer // and stores of scalars query "
        "the chip while a kernel is lowered",
        advice="lower it with `pallas-debug dump`, which answers for the target; or within "
        "jax.sharding.use_abstract_mesh with an AbstractDevice",
    ),
    entry(
        "libtpu-too-old",
        "Pallas TPU requires a recent libtpu version",
        "Pallas TPU requires a libtpu version that's at most a month old",
        title="libtpu is older than this jax needs",
        cause="jax writes kernels in a form that only a newer libtpu reads",
        advice="install the two together: pip install 'jax[tpu]'; `pallas-debug doctor` says which "
        "are installed",
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
        cause="one of the two is too new for the other: the program, the kernel or its parameters "
        "are in a form that the older one does not know",
        advice="install the two together: pip install 'jax[tpu]'",
        ambiguous=True,
    ),
    entry(
        "exported-kernel",
        "failed to legalize operation 'func.func'",
        "Static device assignment is undefined",
        title="an exported kernel is compiled where it cannot be",
        cause="a kernel that was serialised with jax.export belongs to its device assignment and "
        "to a libtpu of about its age",
        advice="export it again with the versions that run it, and compile it for the same number "
        "of devices",
        links=(JAX + "34936",),
        ambiguous=True,
    ),
    entry(
        "too-few-devices",
        "No registered implementation for untyped custom call to xla.sdy.GlobalToLocalShape",
        title="a program for a mesh runs where there are fewer devices than the mesh has",
        cause="an AbstractMesh names no devices, and jax compiles for it whether there are enough "
        "or not",
        advice="run it on as many devices; on a CPU, set "
        "XLA_FLAGS=--xla_force_host_platform_device_count=N before jax is imported",
    ),
    entry(
        "libtpu-in-use",
        "Internal error when accessing libtpu multi-process lockfile",
        "libtpu.so already in use",
        "The TPU is already in use by process",
        title="another process has libtpu",
        cause="one process at a time drives a TPU; a process that died may have left the lock",
        advice="end the other process. Processes that only compile may run side by side with "
        "ALLOW_MULTIPLE_LIBTPU_LOAD=1, as those of pallas-debug do",
        links=(JAX + "10192",),
    ),
    entry(
        "unknown-topology",
        "Invalid TPU external name",
        "Your TPU topology name … is invalid",
        title="libtpu knows no topology of this name",
        cause="topologies are written as in v5e:2x2, v5p:2x2x1, v6e:2x2 and tpu7x:2x2x1",
        advice="`pallas-debug targets` lists the names",
    ),
    entry(
        "no-accelerator-type",
        "could not determine TPU accelerator type",
        "could not determine TPU worker hostnames",
        title="libtpu looks for the TPU of this host, and there is none",
        cause="it was loaded on a machine without a TPU; compiling works without one",
        advice="nothing, if you only compile; TPU_SKIP_MDS_QUERY=1 avoids the wait. "
        "On a TPU host set TPU_ACCELERATOR_TYPE",
        links=(JAX + "29069",),
        general=True,
    ),
    entry(
        "unknown-flag",
        "Unknown flag in XLA_FLAGS",
        "ERROR: Unknown command line flag 'xla_",
        title="a flag unknown to this XLA or libtpu, which ends the process",
        cause="flags of the TPU's compiler go into LIBTPU_INIT_ARGS, others into XLA_FLAGS; and "
        "both change between releases",
        advice="move the flag to the other variable, or leave it out",
    ),
    entry(
        "compile-option",
        "No such compile option",
        title="an option that can only be a flag of the process is passed to one compilation",
        cause="lowered.compile(…) accepts fewer options than libtpu has flags: those for dumps "
        "are not among them",
        advice="put it into LIBTPU_INIT_ARGS before the process starts; or use `pallas-debug dump`",
    ),
    entry(
        "removed-name",
        "module 'jax.experimental.pallas.tpu' has no attribute",
        "module 'jax.experimental.pallas' has no attribute",
        "type object 'MemorySpace' has no attribute",
        "pl.dot was deprecated in JAX",
        kinds=("RemovedName",),
        title="a name of Pallas that this jax does not have",
        cause="it was renamed, moved or removed, or is newer than this jax",
        advice="TPUCompilerParams is CompilerParams, TPUMemorySpace is MemorySpace; pltpu.ANY and "
        "pltpu.MemorySpace.ANY are pl.ANY; pl.load and pl.store are ref[…]; pltpu.repeat is "
        "jnp.repeat or jnp.tile; pl.dot is jnp.dot; semaphore_signal and semaphore_wait are in pl",
        versions="TPUCompilerParams until jax 0.8, pl.load until 0.9, pltpu.repeat until 0.10.1, "
        "pl.dot until 0.11",
        links=(PALLAS + "CHANGELOG.html",),
    ),
    entry(
        "removed-argument",
        "pallas_call() got an unexpected keyword argument",
        title="an argument that pallas_call of this jax does not take",
        cause="it was renamed or removed",
        advice="leave backend= out: compiler_params select it; see Pallas's changelog for others",
        versions="backend= until jax 0.9",
        links=(PALLAS + "CHANGELOG.html",),
    ),
)
