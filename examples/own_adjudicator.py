"""Any callable (pair, candidates) -> weights is an adjudicator; this one believes candidates that others agree with."""

import torch

import lpa_cwm as lc
from lpa_cwm.worlds.toy import ToyMotion, ToyWorld, toy_clip, toy_truth


def agreement(pair, candidates):
    """Weigh each candidate by how many of them, itself included, point within three pixels of it."""
    near = torch.cdist(candidates.peak, candidates.peak) < 3
    votes = near.sum(-1).float().square()
    return votes / votes.sum(1, keepdim=True)


def main():
    # A world whose motion is known, and whose candidates are wrong by 5 pixels under six masks in ten.
    motion = ToyMotion(shift=(0.03, 0.02))
    clip, world = toy_clip(motion, 2), ToyWorld(error=5.0, wrong=0.6)
    queries = lc.grid(2).on(clip.hw)
    truth = toy_truth(motion, queries, 2, clip.hw)
    errors = {}
    for name, adjudicator in {"uniform": "uniform", "agreement": agreement}.items():
        tracks = lc.load(adjudicator, world, lc.TrackerConfig(passes=0)).track(clip, queries)
        errors[name] = (tracks.xy - truth.xy)[:, 1].norm(dim=-1).mean().item()
        believed = tracks.support[:, 1].mean().item()
        print(f"{name:10} mean error {errors[name]:.2f} px, believes {believed:.1f} of 10 candidates")
    return errors


if __name__ == "__main__":
    main()
