"""Block sizes of flash attention."""

from dataclasses import dataclass, fields, replace

import jax

from ..._arguments import LANES, checked_block, sublanes

OPERATION = "flash_attention"

# Major block of each minor block.
_MINOR_OF = {
    "block_k_major": "block_k",
    "block_q_major_dkv": "block_q_dkv",
    "block_k_major_dkv": "block_k_dkv",
    "block_k_major_dq": "block_k_dq",
}


@dataclass(frozen=True, kw_only=True)
class FlashBlockSizes:
    """Block sizes of the forward kernel and of both backward kernels.

    A grid step loads a major block of one sequence and processes it in minor blocks, so a minor
    block divides its major block. A block larger than its sequence is reduced to fit.

    Attributes:
      block_q: queries per grid step, forward: a multiple of 8 (bfloat16: 16).
      block_k_major: keys per grid step, forward.
      block_k: keys per block of scores, forward: a multiple of 128.
      block_b: batch entries per grid step, forward: divides the batch.
      block_q_major_dkv: queries per grid step of the dK/dV kernel.
      block_k_major_dkv: keys per grid step of the dK/dV kernel.
      block_k_dkv: keys per block of scores of the dK/dV kernel: a multiple of 128.
      block_q_dkv: queries per block of scores of the dK/dV kernel: a multiple of 128.
      block_k_major_dq: keys per grid step of the dQ kernel.
      block_k_dq: keys per block of scores of the dQ kernel: a multiple of 128.
      block_q_dq: queries per grid step of the dQ kernel: a multiple of 8 (bfloat16: 16).

    Raises:
      ValueError: for a block that is not a positive int, or does not divide its major block.
    """

    block_q: int = 512
    block_k_major: int = 512
    block_k: int = 512
    block_b: int = 1

    block_q_major_dkv: int = 512
    block_k_major_dkv: int = 512
    block_k_dkv: int = 512
    block_q_dkv: int = 512

    block_k_major_dq: int = 512
    block_k_dq: int = 512
    block_q_dq: int = 512

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(f"{OPERATION}: {field.name} must be at least 1.")
        for major_name, minor_name in _MINOR_OF.items():
            major, minor = getattr(self, major_name), getattr(self, minor_name)
            if major % minor:
                raise ValueError(
                    f"{OPERATION}: {minor_name} is {minor}. "
                    f"It must divide {major_name}, which is {major}."
                )

    @classmethod
    def square(cls, block_q: int, block_k: int) -> "FlashBlockSizes":
        """Return blocks of `block_q` queries and `block_k` keys everywhere, with no minor blocks.

        The dK/dV kernel processes queries in multiples of 128, so there `block_q` is rounded up.
        """
        block_q_dkv = round_up(block_q, LANES)
        return cls(
            block_q=block_q,
            block_k_major=block_k,
            block_k=block_k,
            block_q_major_dkv=block_q_dkv,
            block_k_major_dkv=block_k,
            block_k_dkv=block_k,
            block_q_dkv=block_q_dkv,
            block_k_major_dq=block_k,
            block_k_dq=block_k,
            block_q_dq=block_q,
        )

    def fitted(self, q: jax.Array, k: jax.Array) -> "FlashBlockSizes":
        """Return blocks for `q` and `k`: legal for the dtype, and no larger than needed."""
        rows = sublanes(q.dtype)
        multiples = {
            "block_q": rows,
            "block_k": LANES,
            "block_k_dkv": LANES,
            "block_q_dkv": LANES,
            "block_k_dq": LANES,
            "block_q_dq": rows,
        }
        sizes: dict[str, int] = {}
        for name, multiple in multiples.items():
            dim = "q_seq" if name.startswith("block_q") else "kv_seq"
            seq = (q if dim == "q_seq" else k).shape[2]
            block = checked_block(
                OPERATION, name, getattr(self, name), multiple=multiple, dim=dim, size=seq
            )
            sizes[name] = round_up(block, multiple)
        for major_name, minor_name in _MINOR_OF.items():
            seq = (q if major_name.startswith("block_q") else k).shape[2]
            major = getattr(self, major_name)
            sizes[major_name] = min(
                round_up(major, sizes[minor_name]), round_up(seq, sizes[minor_name])
            )
        if q.shape[0] % self.block_b:
            raise ValueError(
                f"{OPERATION}: block_b is {self.block_b}. "
                f"It must divide the batch, which is {q.shape[0]}."
            )
        return replace(self, **sizes)


def round_up(size: int, multiple: int) -> int:
    """Round `size` up to a multiple of `multiple`."""
    return -(-size // multiple) * multiple
