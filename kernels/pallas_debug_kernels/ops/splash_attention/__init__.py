"""Block-sparse attention (splash attention), forward and backward."""

from ..._arguments import SegmentIds as SegmentIds
from .api import make_splash_attention as make_splash_attention
from .api import splash_attention as splash_attention
from .block_sizes import SplashBlockSizes
from .mask_info import MaskInfo as MaskInfo
from .mask_info import process_mask as process_mask
from .masks import CausalMask as CausalMask
from .masks import FullMask as FullMask
from .masks import LocalMask as LocalMask
from .masks import Mask as Mask
from .masks import MultiHeadMask as MultiHeadMask
from .masks import NumpyMask as NumpyMask
from .reference import splash_attention_reference as splash_attention_reference
from .specs import SPECS as SPECS

BlockSizes = SplashBlockSizes  # as jax calls it
