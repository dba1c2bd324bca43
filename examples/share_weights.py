"""Save trained networks with their configuration, load them again and track with them."""

import tempfile
from pathlib import Path

import lpa_cwm as lc
from lpa_cwm.worlds.learned.network import LearnedNetwork


def main(folder=None):
    folder = Path(folder or tempfile.mkdtemp())
    # Replace these two by an adjudicator and a world model that you trained.
    adjudicator, network = lc.LPA(), lc.LearnedWorld.load().network

    adjudicator.save_pretrained(folder / "my-lpa")  # or adjudicator.push_to_hub("you/my-lpa")
    network.save_pretrained(folder / "my-world")

    # Elsewhere: a folder, or the name of a repository on the hub.
    adjudicator = lc.LPA.from_pretrained(folder / "my-lpa")
    world = lc.LearnedWorld(LearnedNetwork.from_pretrained(folder / "my-world"))
    tracker = lc.load(adjudicator, world)
    print(f"a tracker from {folder}; {sum(p.numel() for p in adjudicator.parameters()):,} parameters decide")
    return tracker


if __name__ == "__main__":
    main()
