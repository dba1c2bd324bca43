"""An adjudicator of your own: any callable (pair, candidates) -> Judgement; this one favors candidates that agree."""

import torch

import lpa_cwm as lc
from lpa_cwm.types import Judgement
from lpa_cwm.worlds.toy import ToyMotion, ToyWorld, toy_clip, toy_truth


def agreement(pair, candidates):
    """Weight each candidate by the squared number of candidates within three pixels of it."""
    near = torch.cdist(candidates.peak, candidates.peak) < 3
    return Judgement.of(near.sum(-1).float().square())


def main():
    # The motion of this world is known; its candidates are wrong by 5 pixels under six of ten masks.
    motion = ToyMotion(shift=(0.03, 0.02))
    clip, world = toy_clip(motion, 2), ToyWorld(error=5.0, wrong=0.6)
    queries = lc.grid(2).on(clip.hw)
    truth = toy_truth(motion, queries, 2, clip.hw)
    errors = {}
    for name, adjudicator in {"uniform": "uniform", "agreement": agreement}.items():
        tracks = lc.load(adjudicator, world, lc.TrackerConfig(passes=0)).track(clip, queries)
        errors[name] = (tracks.xy - truth.xy)[:, 1].norm(dim=-1).mean().item()
        assert tracks.support is not None
        support = tracks.support[:, 1].mean().item()
        print(f"{name:10} mean error {errors[name]:.2f} px, effective candidates {support:.1f} of 10")
    return errors


if __name__ == "__main__":
    main()
