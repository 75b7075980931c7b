"""What scripts that we write say of jax's internals. Text alone: it imports nothing."""

PREFIX = "jax._src."
"""Of jax's private modules; a script binds a primitive from there that has no public spelling."""

COMPILE_A_MODULE = """def compiled(devices):
    # A module that is no function of Python is compiled by jax's internals alone.
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir

    client = devices[0].client
    options = compiler.get_compile_options(
        num_replicas=1,
        num_partitions=NUM_DEVICES,
        device_assignment=np.array([[device.id for device in devices]]),
        env_options_overrides=OPTIONS,
        backend=client,
    )
    options.executable_build_options.use_spmd_partitioning = NUM_DEVICES > 1
    options.executable_build_options.use_shardy_partitioner = NUM_DEVICES > 1
    with mlir.make_ir_context():
        module = ir.Module.parse(lowered())
    return client.compile(module, xla_client.DeviceList(tuple(devices)), options)
"""
"""Compiles a module of StableHLO that came from no function of Python; jax 0.10.2 and later."""
