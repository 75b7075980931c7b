"""References to jax's internals in generated scripts. Text only: it imports nothing."""

PREFIX = "jax._src."
"""Prefix of jax's private modules, from which scripts bind primitives without a public name."""

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
"""Compiles a StableHLO module without a Python function; for jax 0.10.2 and later."""
