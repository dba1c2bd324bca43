"""A world model of your own: the four methods, here for a model that knows only the pan of a camera."""

from dataclasses import dataclass

import torch

import lpa_cwm as lc
from lpa_cwm.geometry import pixel_centers
from lpa_cwm.worlds.toy import ToyMotion, toy_clip, toy_truth


@dataclass
class Panning:
    """Predicts that the whole frame moves by one shift, found by phase correlation (Kuglin & Hines 1975)."""

    size: int = 256
    patch: int = 8
    response_sigma: float = 2.0
    defaults = lc.TrackerConfig()

    def describe(self, frame):
        """Once per frame: its spectrum."""
        return torch.fft.fft2(frame.mean(0))

    def observe(self, source, target):
        """Once per frame pair: the shift from source to target, in pixels."""
        spectrum = target * source.conj()
        peak = torch.fft.ifft2(spectrum / spectrum.abs().clamp(min=1e-9)).real.flatten().argmax()
        shift = torch.stack((peak % self.size, peak // self.size))
        return torch.where(shift > self.size // 2, shift - self.size, shift).float()

    def imagine(self, scene, hidden):
        """Once per mask: the hidden pixels, in which the target is predicted."""
        side = self.size // self.patch
        patches = hidden.view(-1, side, side)
        return patches.repeat_interleave(self.patch, 1).repeat_interleave(self.patch, 2)

    def intervene(self, scene, factual, xy):
        """Per query: the change of the prediction when a Gaussian bump is added at the query."""
        offset = pixel_centers((self.size, self.size)) - (xy + scene)[:, None, None]
        spot = 0.2 * (-offset.square().sum(-1) / (2 * self.response_sigma**2)).exp()
        change = spot[:, None] * factual[None]
        return change[:, :, None].expand(-1, -1, 3, -1, -1)


def main():
    assert isinstance(Panning(), lc.WorldModel)
    motion = ToyMotion(shift=(4 / 256, -2 / 256))
    clip = toy_clip(motion, 3)
    queries = lc.grid(2).on(clip.hw)
    tracks = lc.load("uniform", Panning()).track(clip, queries)
    truth = toy_truth(motion, queries, 3, clip.hw)
    error = (tracks.xy - truth.xy)[:, 1:].norm(dim=-1).mean().item()
    print(f"mean error over two frames: {error:.2f} px")
    return error


if __name__ == "__main__":
    main()
