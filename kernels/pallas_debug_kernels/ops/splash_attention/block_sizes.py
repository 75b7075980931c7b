"""Block sizes of the three kernels."""

from dataclasses import dataclass, fields

from ..._arguments import LANES

LARGEST_DEFAULT = 512


@dataclass(frozen=True, kw_only=True)
class SplashBlockSizes:
    """Queries (`block_q*`) and keys (`block_kv*`) per block, for each kernel.

    Every size is a multiple of 128 and divides its sequence. Of a block of keys in VMEM, the
    kernels process `block_kv*_compute` at a time, which must divide the block.

    block_q, block_kv, block_kv_compute: forward.
    block_q_dkv, block_kv_dkv, block_kv_dkv_compute: dK and dV.
    block_q_dq, block_kv_dq: dQ.
    """

    block_q: int
    block_kv: int
    block_kv_compute: int
    block_q_dkv: int
    block_kv_dkv: int
    block_kv_dkv_compute: int
    block_q_dq: int
    block_kv_dq: int

    def __post_init__(self) -> None:
        for field in fields(self):
            size = getattr(self, field.name)
            if size < 1 or size % LANES:
                raise ValueError(
                    f"BlockSizes: {field.name} is {size!r}. "
                    f"It must be a positive multiple of {LANES}."
                )
        for whole in ("block_kv", "block_kv_dkv"):
            size, part = getattr(self, whole), getattr(self, f"{whole}_compute")
            if size % part:
                raise ValueError(
                    f"BlockSizes: {whole}_compute is {part}. "
                    f"It must divide {whole}, which is {size}."
                )

    @classmethod
    def same(cls, block_q: int, block_kv: int) -> "SplashBlockSizes":
        """Return the same blocks for all three kernels."""
        return cls(
            block_q=block_q,
            block_kv=block_kv,
            block_kv_compute=block_kv,
            block_q_dkv=block_q,
            block_kv_dkv=block_kv,
            block_kv_dkv_compute=block_kv,
            block_q_dq=block_q,
            block_kv_dq=block_kv,
        )

    @classmethod
    def default(cls, q_seq: int, kv_seq: int) -> "SplashBlockSizes":
        """Return the largest blocks, up to 512, that divide the sequences."""
        return cls.same(_largest_block("q_seq", q_seq), _largest_block("kv_seq", kv_seq))

    def check(self, q_seq: int, kv_seq: int) -> None:
        """Raise a ValueError if a block does not divide its sequence."""
        for field in fields(self):
            dim, size = ("q_seq", q_seq) if field.name.startswith("block_q") else ("kv_seq", kv_seq)
            block = getattr(self, field.name)
            if size % block:
                raise ValueError(
                    f"splash_attention: {field.name} is {block}. "
                    f"It must divide {dim}, which is {size}."
                )


def _largest_block(dim: str, size: int) -> int:
    for block in range(LARGEST_DEFAULT, 0, -LANES):
        if size % block == 0:
            return block
    raise ValueError(
        f"splash_attention: {dim} is {size}. It must be a multiple of {LANES}, "
        "so that a block divides it: pad the sequence, and mask the padding."
    )
