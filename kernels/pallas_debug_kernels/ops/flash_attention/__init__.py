"""Attention with an online softmax (FlashAttention), forward and backward."""

from .api import Residuals as Residuals
from .api import SegmentIds as SegmentIds
from .api import flash_attention as flash_attention
from .block_sizes import BlockSizes as BlockSizes
from .reference import flash_attention_reference as flash_attention_reference
from .specs import SPECS as SPECS
