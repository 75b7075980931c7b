"""Attention with an online softmax (FlashAttention), forward and backward."""

from ..._arguments import SegmentIds as SegmentIds
from .api import flash_attention as flash_attention
from .block_sizes import FlashBlockSizes
from .reference import flash_attention_reference as flash_attention_reference
from .specs import SPECS as SPECS

BlockSizes = FlashBlockSizes  # as jax calls it
