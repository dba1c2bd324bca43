"""Weights by a formula, so that golden outputs of large networks need no file of weights."""

import math
import zlib

import numpy as np
import torch


def formula_weights(shapes):
    """One tensor per name and shape: uniform numbers, drawn from raw bits, whose stream numpy never changes."""
    return {name: _tensor(name, tuple(shape)) for name, shape in shapes.items()}


def _tensor(name, shape):
    if name.endswith("num_batches_tracked"):
        return torch.zeros(shape, dtype=torch.long)
    raw = np.random.PCG64(zlib.crc32(name.encode())).random_raw(math.prod(shape))
    uniform = torch.from_numpy((raw >> np.uint64(11)) / 2**52 - 1).view(shape)
    if len(shape) > 1:
        return (uniform / math.sqrt(math.prod(shape[1:]) / 3)).float()
    # A norm scales by nearly one, and a variance is positive; a bias or a running mean is small.
    offset = 1.0 if name.endswith((".weight", "running_var")) else 0.0
    return (offset + 0.1 * uniform).float()
