"""Attention with an online softmax (FlashAttention), forward only."""

from .api import flash_attention as flash_attention
from .reference import flash_attention_reference as flash_attention_reference
from .specs import SPECS as SPECS
