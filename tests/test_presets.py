"""The preset `paper` is what the paper's text says; every quotation stands beside the setting that it fixes."""

import dataclasses
import math

import pytest
import torch

from lpa_cwm.adjudicators.lpa import LPA
from lpa_cwm.cli.main import COMMANDS, main, parse
from lpa_cwm.config import PAPER, PRESETS, TrackerConfig
from lpa_cwm.pair_tracking import decode_candidates
from lpa_cwm.probe import first_pass, observe_pair
from lpa_cwm.training.caching import CacheSettings
from lpa_cwm.training.loop import load_checkpoint
from lpa_cwm.training.lpa import LpaTraining, init_network, train_lpa
from lpa_cwm.training.objective import TEMPERATURE, Objective
from lpa_cwm.types import Judgement
from lpa_cwm.worlds.toy import ToyMotion, ToyWorld, toy_clip
from test_lpa_training import job

TRACKER = {
    # Section 4.1: "We fix M=10, use one paired re-evaluation (R=1), set beta=200, and apply two windowed
    # localization updates."
    "masks": 10,
    "passes": 1,
    "sharpness": 200.0,
    "windows": 2,
    # Section 3.4: "each target is predicted from the fixed first-visible query without recursion".
    "gaps": (),
    # Eq. 8: d(u) = 1/3 ||sum_m w_m Delta_m(u)||_1.
    "reduce": "mean",
    # Section 3.4: "The discrete argmax of pi^(2) gives the initial endpoint"; Appendix A: "The discrete peak of the
    # resulting response distribution gives the refined endpoint."
    "subpixel": False,
    # Appendix A: s = 1/M sum_m s_m, v = 1[s >= 0.05]; "This frozen CWM visibility rule is shared by Uniform CWM,
    # APA-CWM, and LPA-CWM."
    "strength": "mean",
    "visibility_threshold": 0.05,
    "calibration": None,
    # Appendix A: "the initial endpoint determines the center of the heuristic masking applied to the target frame ...
    # A fresh set of M masks is sampled": one endpoint, one set of masks.
    "reevaluation": "query",
    "mask_sharing": "query",
    # Not in the text: the rule of the official code, which reveals the first hidden patches.
    "reveal": "raster",
    # Appendix A: "The crop side follows s_r = s_1 eta^(r-1) with fixed eta=0.75".
    "zoom": 0.75,
}
TRAINING = {
    # Appendix A: "AdamW uses a learning rate of 3e-4, batch size 16, and a cosine schedule."
    "rate": 3e-4,
    "batch": 16,
    # Section 3.3 names four sources of information, SetEnc and h_score; "LPA has no separate visibility head".
    "interaction": True,
    "visual": True,
    "visibility_head": False,
    # Candidates come from one frame: there are no paths.
    "path": False,
    "source_dropout": 0.0,
    # Appendix A, "LPA training", describes sampling, order of candidates, optimizer and selection: nothing of these.
    "clip": math.inf,
    "oversample": 1,
    "augment": False,
    "average": False,
    "max_oracle_error": math.inf,
}
# Eq. 7: KL + lambda_1 SmoothL1 + lambda_2 CE; "Here we set lambda_1=2 and lambda_2=0.2."
OBJECTIVE = {"coordinate": 2.0, "rank": 0.2, "visibility": 0.0, "decoded": 0.0}
# Section 3.3: "candidate sets of size M=10 generated from adjacent MOVi-F frames", of points with a true endpoint.
CACHE = {"masks": 10, "gaps": (1, 1), "hidden": 0}


def test_every_setting_equals_the_text():
    assert PAPER.tracker == TRACKER
    assert PAPER.training == TRAINING
    assert PAPER.objective == OBJECTIVE
    assert PAPER.cache == CACHE
    assert TEMPERATURE == 4  # Eq. 6: tau_q = 4.


def test_no_setting_is_left_to_our_defaults():
    """A field that is added to the tracker or to the training must be decided for the paper, too."""
    memory, free = {"batch"}, {"steps", "save_every", "seed", "autocast", "init", "objective"}
    per_source = {"gap_masks"}  # Of no effect without gaps.
    names = {field.name for field in dataclasses.fields(TrackerConfig)} - memory - per_source
    assert names == set(PAPER.tracker)
    assert {field.name for field in dataclasses.fields(LpaTraining)} - free == set(PAPER.training)
    assert {field.name for field in dataclasses.fields(Objective)} == set(PAPER.objective)


def test_the_network_has_the_papers_size():
    """Appendix A: "The complete LPA module contains 3,000,257 trainable parameters." """
    training = LpaTraining.of_preset("paper")
    network = LPA(training.interaction, training.visual, training.visibility_head)
    assert sum(parameter.numel() for parameter in network.parameters()) == 3_000_257


METHOD = ("track", "explain", "data cache", "train lpa")
METHOD += tuple(f"eval {name}" for name in ("predict", "compare", "ablate", "sweep", "audit"))


@pytest.mark.parametrize("name", METHOD)
def test_every_command_of_the_method_takes_the_preset(name):
    words = COMMANDS[name].EXAMPLE.split()[1:]
    command = parse([*words, "--preset", "paper"])
    assert getattr(command, "expert", command).preset == "paper"
    if hasattr(command, "expert"):
        assert command.expert.given() == TRACKER


def test_options_override_the_preset():
    words = ["eval", "predict", "d.pkl", "--out", "r", "--preset", "paper", "--passes", "0", "--subpixel"]
    assert parse(words).expert.given() == TRACKER | {"passes": 0, "subpixel": True}
    train = parse(
        ["train", "lpa", "c", "--preset", "paper", "--decoded-weight", "3", "--average", "--steps", "7"]
    ).training()
    assert train == LpaTraining.of_preset("paper", {"decoded": 3.0}, average=True, steps=7)
    assert parse(["train", "lpa", "c"]).training() == LpaTraining()
    cache = parse(["data", "cache", "d", "--out", "c", "--preset", "paper", "--masks", "4"]).settings()
    assert cache == CacheSettings.of_preset("paper", **CACHE | {"masks": 4})
    assert parse(["data", "cache", "d", "--out", "c"]).settings() == CacheSettings(**PRESETS["default"].cache)


def test_a_baseline_has_no_preset(capsys):
    with pytest.raises(SystemExit):
        main(["track", "--tracker", "static", "--preset", "paper"])
    assert "static does not take --preset;" in capsys.readouterr().err


def test_the_papers_strength_is_the_mean_over_masks_whatever_the_weights():
    clip, world = toy_clip(ToyMotion(shift=(0.05, 0.0)), 2, (64, 64)), ToyWorld(size=64, sigma=2.0)
    config = dataclasses.replace(world.defaults, masks=3)
    observed = observe_pair(world, clip[0], clip[1], ("clip",), config, "cpu")
    _, _, candidates = next(first_pass(observed, torch.tensor([[20.5, 30.5], [40.0, 12.0]])))
    judgement = Judgement(torch.tensor([[1.0, 0.0, 0.0]] * 2), torch.tensor([0.5, 2.0]))
    judged = decode_candidates(observed, candidates, judgement).strength
    observed.config = dataclasses.replace(config, strength="mean")
    mean = decode_candidates(observed, candidates, judgement).strength
    assert torch.allclose(judged, torch.tensor([0.5, 2.0]) * candidates.strength[:, 0])
    assert torch.equal(mean, candidates.strength.mean(1))


def test_the_papers_training_averages_and_leaves_out_nothing(tmp_path):
    from lpa_cwm.training.feature_cache import fill_cache, read_cache

    list(fill_cache(job(), tmp_path / "cache"))
    training = LpaTraining.of_preset("paper", steps=2, save_every=1, batch=4)
    weights = train_lpa([tmp_path / "cache"], tmp_path / "out", training)
    state = load_checkpoint(tmp_path / "out/checkpoint.pt")
    assert "average" not in state
    assert weights.exists()
    sets, _ = read_cache(tmp_path / "cache")
    begun = init_network(training, sets, torch.arange(len(sets)))
    assert begun.visibility_head is None
