"""From identities to random generators: no draw depends on call order, batch composition or sharding."""

import hashlib

import numpy as np
import torch

KeyPart = str | int | float


def seed_of(*identity: KeyPart) -> int:
    """A 63-bit number that is a function of the identity alone."""
    # repr keeps 1, 1.0 and "1" apart; the separator keeps ("ab", "c") and ("a", "bc") apart.
    text = "\x1f".join(repr(part) for part in identity)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(*identity: KeyPart) -> torch.Generator:
    """A CPU generator seeded by the identity, so that draws are equal on every device."""
    return torch.Generator().manual_seed(seed_of(*identity))


def numpy_rng(*identity: KeyPart) -> np.random.Generator:
    """A numpy generator seeded by the identity."""
    return np.random.default_rng(seed_of(*identity))
