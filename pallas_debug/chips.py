"""The table of chips: one row for each, with its figures and their sources.

Nothing here imports jax: dumps are also read on machines without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pallas_debug import defaults

TILE = SUBLANES, LANES = 8, 128
"""Rows and columns of a tile of 32-bit numbers, which fills a vector register. Narrower types have
more rows."""

MIB = 1 << 20

_DOCS = "https://docs.cloud.google.com/tpu/docs"


def packing(bits: int) -> int:
    """Elements of a type that share a 32-bit word."""
    return max(32 // max(bits, 1), 1)


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Corrections of a chip's copy model by measured run times, relative to libtpu's estimates.

    Attributes:
      latency, bandwidth: factors.
      start: cycles for which starting a copy occupies the scalar core, besides its bundle.
    """

    latency: float
    bandwidth: float
    start: float


@dataclass(frozen=True, kw_only=True)
class Chip:
    """A chip.

    Attributes:
      name: generation, as users write it.
      aliases: other names (cloud.google.com/tpu/docs, system architecture).
      topology, device_kind: names of libtpu 0.0.42 and 0.0.50 (`jax.experimental.topologies`).
      cores: TensorCores of a jax device, over which libtpu has been observed to split a grid.
      unmultiplied: prefixes of the dtypes that its matrix units cannot multiply.
      vmem, smem: bytes of VMEM and SMEM, as observed with libtpu 0.0.42 and 0.0.50.
      vmem_limit: bytes of VMEM that a kernel may use by default, observed likewise.
      source: page with the published figures that follow, of one TensorCore.
      flops: matrix operations per second by operand type; a multiply-add counts as two. Those of a
        chip with two TensorCores are divided by two, as a kernel's schedule is for one core.
      bandwidth: bytes per second from and to HBM; the chip's total where its cores form one device,
        as a single core may use all of it, and half of it on tpu7x, whose cores are two devices.
      clock: cycles per second; `flops` divided by the operations of the matrix units per cycle.
      delay_slots: bundles after a branch that run whether or not it is taken, as seen in schedules.
      granule: bytes of the unit in which `dma` instructions state sizes.
      copies: latency in cycles and bandwidth in bytes per cycle of copies between memories, fitted
        to libtpu's own estimates: kernels that only copy were compiled with libtpu 0.0.42 and
        0.0.50. None where the bandwidth is that of `hbm_to_vmem`.
      borrows_copies: whether libtpu gives no estimate for the chip: the latencies are those of the
        nearest chip that has one, and HBM has the same share of the published bandwidth.
      calibration: None if no run times are known.
    """

    name: str
    aliases: tuple[str, ...] = ()
    topology: str
    device_kind: str
    cores: int = 1
    unmultiplied: tuple[str, ...] = ()
    vmem: int
    vmem_limit: int
    smem: int = MIB
    source: str
    flops: Mapping[str, float]
    bandwidth: float
    clock: float
    delay_slots: int
    granule: int = 32
    copies: Mapping[str, tuple[float, float | None]] = field(repr=False)
    borrows_copies: bool = False
    calibration: Calibration | None = None

    def flops_of(self, dtype: str) -> float | None:
        """Return the peak for operands of a type.

        bfloat16 is the widest type that matrix units multiply. A float32 product is split into
        three or six bfloat16 products, so its peak is that of bfloat16.
        """
        return self.flops.get(dtype, self.flops.get("bf16"))


_V5P_COPIES: Mapping[str, tuple[float, float | None]] = {
    "hbm_to_vmem": (660, 1250.5),
    "vmem_to_hbm": (618, None),
    "hbm_to_smem": (468, 27),
    "smem_to_hbm": (497, 27),
    "vmem_to_smem": (765, 23),
    "smem_to_vmem": (767, 23),
}

CHIPS: Mapping[str, Chip] = {
    chip.name: chip
    for chip in (
        Chip(
            name="v4",
            topology="v4:2x2x1",
            device_kind="TPU v4",
            unmultiplied=("int8", "uint8", "float8", "int4", "uint4"),
            vmem=16 * MIB,
            vmem_limit=16 * MIB,
            source=f"{_DOCS}/v4",
            flops={"bf16": 137.5e12},
            bandwidth=1228e9,
            clock=1.05e9,
            delay_slots=1,
            granule=512,
            copies={**_V5P_COPIES, "hbm_to_vmem": (660, 925.6)},
            borrows_copies=True,
        ),
        Chip(
            name="v5e",
            aliases=("v5litepod",),
            topology="v5e:2x2",
            device_kind="TPU v5 lite",
            vmem=128 * MIB,
            vmem_limit=16 * MIB,
            source=f"{_DOCS}/v5e",
            flops={"bf16": 197e12, "i8": 393e12},
            bandwidth=819e9,
            clock=1.5e9,
            delay_slots=4,
            copies={
                "hbm_to_vmem": (1133, 491.2),  # 0.9 of the published bandwidth
                "vmem_to_hbm": (439, None),
                "hbm_to_smem": (1647, 32),
                "smem_to_hbm": (378, 32),
                # libtpu estimates nothing: as fast as `smem_to_vmem`, as on the other chips
                "vmem_to_smem": (251, 32),
                "smem_to_vmem": (251, 32),
            },
        ),
        Chip(
            name="v5p",
            topology="v5p:2x2x1",
            device_kind="TPU v5",
            cores=2,
            vmem=64 * MIB,
            vmem_limit=16 * MIB,
            source=f"{_DOCS}/v5p",
            flops={"bf16": 229.5e12, "i8": 459e12},
            bandwidth=2765e9,
            clock=1.75e9,
            delay_slots=4,
            copies=_V5P_COPIES,
        ),
        Chip(
            name="v6e",
            aliases=("trillium",),
            topology="v6e:2x2",
            device_kind="TPU v6 lite",
            vmem=128 * MIB,
            vmem_limit=32 * MIB,
            source=f"{_DOCS}/v6e",
            flops={"bf16": 918e12, "i8": 1836e12},
            bandwidth=1638e9,
            clock=1.75e9,
            delay_slots=4,
            copies={
                "hbm_to_vmem": (544, 776.4),
                "vmem_to_hbm": (452, None),
                "hbm_to_smem": (719, 35),
                "smem_to_hbm": (268, 29),
                "vmem_to_smem": (575, 35),
                "smem_to_vmem": (578, 35),
            },
            # Run times of 22 functions of JAXBench's model `gpt53`
            # (https://github.com/aryatschand/JAXBench, docs/reference/real-time.md)
            calibration=Calibration(latency=1.75, bandwidth=0.82, start=180),
        ),
        Chip(
            name="tpu7x",
            aliases=("v7x", "ironwood"),
            topology="tpu7x:2x2x1",
            device_kind="TPU7x",
            vmem=64 * MIB,
            vmem_limit=32 * MIB,
            source=f"{_DOCS}/tpu7x",
            flops={"bf16": 1153.5e12, "f8": 2307e12},
            bandwidth=3690e9,
            clock=2.2e9,
            delay_slots=6,
            copies={
                "hbm_to_vmem": (687, 1688.9),
                "vmem_to_hbm": (590, None),
                "hbm_to_smem": (717, 32),
                "smem_to_hbm": (688, 32),
                "vmem_to_smem": (574, 32),
                "smem_to_vmem": (578, 32),
            },
        ),
    )
}
"""The chips by name, oldest first."""


REGISTERS = 1 << 16
"""32-bit registers of a GPU's multiprocessor, since compute capability 5.3 on all in the table."""

CAPABILITIES = "https://docs.nvidia.com/cuda/cuda-c-programming-guide/#compute-capabilities"
"""NVIDIA's table of limits."""

_SPECS = "https://github.com/openxla/xla/tree/main/xla/backends/gpu/target_config/specs"


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU of NVIDIA.

    Attributes:
      name: as users write it; `sm_NN` is the first of that compute capability.
      device_kind: jax's name, by which its back ends know the chip (`pallas/triton/gpu_info.py`).
      capability: the compute capability.
      multiprocessors: number of them.
      shared: bytes of shared memory of a multiprocessor; a block gets at most 1 KiB less.
      threads, blocks: maximum that reside on a multiprocessor, from NVIDIA's table of compute
        capabilities, like `shared`.
      bandwidth: bytes per second from and to its memory, of `memory` bytes.
      ptxas: first release of ptxas that jax's plugin supports, or that knows the chip.
      source: page with the other figures.
    """

    name: str
    device_kind: str
    capability: tuple[int, int]
    multiprocessors: int
    shared: int
    threads: int = 2048
    blocks: int = 32
    bandwidth: float
    memory: int
    l2: int
    clock: float
    ptxas: str = "12.1"
    source: str = _SPECS

    @property
    def architecture(self) -> str:
        """ptxas's name; from Hopper on with the instructions that only this chip has."""
        major, minor = self.capability
        return f"sm_{major}{minor}{'a' if major in (9, 10) else ''}"

    @property
    def shared_limit(self) -> int:
        """Bytes of shared memory of a block."""
        return self.shared - 1024

    @property
    def tensor_memory(self) -> int:
        """Columns of tensor memory, of 128 lanes of 32 bits each; of the tcgen05 chips alone."""
        return 512 if self.capability[0] in (10, 11) else 0

    @property
    def target_config(self) -> str:
        """The GPU as XLA's `GpuTargetConfigProto` in text form."""
        major, minor = self.capability
        cores = 64 if self.capability == (8, 0) else 128
        return f"""gpu_device_info {{
          threads_per_block_limit: 1024 threads_per_warp: 32
          shared_memory_per_block: {48 << 10} shared_memory_per_block_optin: {self.shared_limit}
          shared_memory_per_core: {self.shared} threads_per_core_limit: {self.threads}
          registers_per_core_limit: 65536 registers_per_block_limit: 65536
          core_count: {self.multiprocessors} fpus_per_core: {cores}
          block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
          memory_bandwidth: {self.bandwidth:.0f} l2_cache_size: {self.l2}
          clock_rate_ghz: {self.clock / 1e9} device_memory_size: {self.memory}
          cuda_compute_capability {{ major: {major} minor: {minor} }}
        }}
        platform_name: "CUDA"
        dnn_version_info {{ major: 9 minor: 7 }}
        runtime_version {{ major: 12 minor: 9 }}
        device_description_str: "{self.device_kind}"
        """


GPUS: Mapping[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        Gpu(
            name="a100",
            device_kind="NVIDIA A100-SXM4-80GB",
            capability=(8, 0),
            multiprocessors=108,
            shared=164 << 10,
            bandwidth=2039.04e9,
            memory=85100068864,
            l2=40 << 20,
            clock=1.41e9,
        ),
        Gpu(
            name="a10",
            device_kind="NVIDIA A10",
            capability=(8, 6),
            multiprocessors=72,
            shared=100 << 10,
            threads=1536,
            blocks=16,
            bandwidth=600e9,
            memory=24 << 30,
            l2=6 << 20,
            clock=1.695e9,
            source="https://www.nvidia.com/en-us/data-center/products/a10-gpu/",
        ),
        Gpu(
            name="l4",
            device_kind="NVIDIA L4",
            capability=(8, 9),
            multiprocessors=58,
            shared=100 << 10,
            threads=1536,
            blocks=24,
            bandwidth=300e9,
            memory=24 << 30,
            l2=48 << 20,
            clock=2.04e9,
            source="https://www.nvidia.com/en-us/data-center/l4/",
        ),
        Gpu(
            name="h100",
            device_kind="NVIDIA H100 80GB HBM3",
            capability=(9, 0),
            multiprocessors=132,
            shared=228 << 10,
            bandwidth=3352.32e9,
            memory=84942979072,
            l2=50 << 20,
            clock=1.98e9,
        ),
        Gpu(
            name="h200",
            device_kind="NVIDIA H200",
            capability=(9, 0),
            multiprocessors=132,
            shared=228 << 10,
            bandwidth=4800e9,
            memory=151397597184,
            l2=50 << 20,
            clock=1.98e9,
        ),
        Gpu(
            name="b200",
            device_kind="NVIDIA B200",
            capability=(10, 0),
            multiprocessors=148,
            shared=228 << 10,
            bandwidth=7672.32e9,
            memory=191514411008,
            l2=132644864,
            clock=1.965e9,
            ptxas="12.8",
        ),
        Gpu(
            name="b300",
            device_kind="NVIDIA B300",
            capability=(10, 3),
            multiprocessors=158,
            shared=228 << 10,
            bandwidth=7936e9,
            memory=297021865984,
            l2=135528448,
            clock=1.965e9,
            ptxas="12.9",
        ),
        Gpu(
            name="rtxpro6000",
            device_kind="NVIDIA RTX PRO 6000 Blackwell",
            capability=(12, 0),
            multiprocessors=188,
            shared=100 << 10,
            threads=1536,
            blocks=24,
            bandwidth=1792e9,
            memory=103079215104,
            l2=128 << 20,
            clock=2.6e9,
            ptxas="12.8",
        ),
    )
}
"""GPUs by name, oldest first."""


def gpu_of(target: str | None) -> Gpu | None:
    """Return the GPU of a target, such as `h100` or `sm_90`; None if it is not in the table."""
    name = (target or "").removesuffix("a")
    named = (gpu for gpu in GPUS.values() if name in (gpu.name, gpu.architecture.removesuffix("a")))
    return next(named, None)


def chip_of(target: str | None) -> Chip | None:
    """Return the chip of a target, such as `v5e` or `v5e:2x4`; None if it is unknown."""
    return CHIPS.get((target or "").partition(":")[0])


def similar_chip(name: str | None) -> Chip:
    """Return the chip with that name; the default one for an unknown name."""
    return CHIPS.get(name or "", CHIPS[defaults.TARGET])


def chip_of_kind(device_kind: str | None) -> Chip | None:
    """Return the chip that jax calls by this name; None if it is unknown."""
    return next((chip for chip in CHIPS.values() if chip.device_kind == device_kind), None)
