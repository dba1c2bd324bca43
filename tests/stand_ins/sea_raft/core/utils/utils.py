"""Stand-in for a module whose name everybody uses."""

import torch


def marker(image):
    """(x, y) of the reddest pixel of each picture."""
    red = image[:, 0] - image[:, 2]
    flat = red.flatten(1).argmax(1)
    return torch.stack((flat % image.shape[-1], flat // image.shape[-1]), dim=1).float()
