"""The dtypes that a tensor of the state may have, as torch knows them."""

import torch

from outlast.state.contents import ITEM_BYTES

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ITEM_BYTES if hasattr(torch, name)}
"""By name, and only those that this torch can copy bit for bit."""
