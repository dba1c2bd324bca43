"""The preset `paper` is what the paper's text says; every quotation stands beside the setting that it fixes."""

import dataclasses
import math
import re
from pathlib import Path

import pytest
import torch

from lpa_cwm.adjudicators.lpa import LPA
from lpa_cwm.cli.main import COMMANDS, main, parse
from lpa_cwm.config import PAPER, PRESETS, TrackerConfig
from lpa_cwm.pair_tracking import decode_candidates
from lpa_cwm.probe import first_pass, observe_pair
from lpa_cwm.registry import load_world
from lpa_cwm.training.feature_cache import CacheSettings
from lpa_cwm.training.loop import load_checkpoint
from lpa_cwm.training.lpa import TEMPERATURE, LpaTraining, Objective, init_network, train_lpa
from lpa_cwm.training.pair_sampling import FlowFilter
from lpa_cwm.types import Judgement
from lpa_cwm.worlds.toy import ToyMotion, ToyWorld, toy_clip
from test_docs import table
from test_lpa_training import job

# The setting, its value, and the words of the paper that fix it; no words where the text is silent.
TRACKER_TEXT = {
    "masks": (10, r"We fix $M=10$"),
    "passes": (1, r"use one paired re-evaluation ($R=1$)"),
    "sharpness": (200.0, r"set $\beta_\pi=200$"),
    "windows": (2, "apply two windowed localization updates"),
    "gaps": ((), "each target is predicted from the fixed first-visible query without recursion"),
    "reduce": ("mean", r"\frac{1}{3} \left\| \overline{\boldsymbol{\Delta}}_w(\mathbf{u}) \right\|_1"),
    "subpixel": (False, "The discrete peak of the resulting response distribution gives the refined endpoint."),
    "strength": ("mean", r"s=\frac{1}{M}\sum_{m=1}^{M}s_m"),
    "visibility_threshold": (0.05, r"\hat{v}=\mathbb{1}[s\geq0.05]"),
    "calibration": (None, "This frozen CWM visibility rule is shared by Uniform CWM, APA-CWM, and LPA-CWM."),
    # The share of the official code, 921 of 1024 patches.
    "hidden_share": (0.9, ""),
    # One endpoint, one set of masks.
    "reevaluation": ("query", "the initial endpoint determines the center of the heuristic masking"),
    "mask_sharing": ("query", "CWM independently processes the corresponding query--target pair"),
    # The rule of the official code, which reveals the first hidden patches.
    "reveal": ("raster", ""),
    "zoom": (0.75, r"The crop side follows $s_r=s_1\eta^{r-1}$ with fixed $\eta=0.75$"),
}
ALL_OF_IT = (
    "Candidate order is randomly permuted during training. AdamW uses a learning rate of $3\\times10^{-4}$, batch"
)
"""The text describes sampling, order of candidates, optimizer and selection: nothing of what these settings do."""
TRAINING_TEXT = {
    "rate": (3e-4, r"AdamW uses a learning rate of $3\times10^{-4}$"),
    "batch": (16, "batch size 16, and a cosine schedule"),
    "interaction": (True, "It compares all candidate tokens, after which a shared scoring head"),
    "visual": (True, "LPA represents each candidate using four sources of information."),
    "visibility_head": (False, "LPA has no separate visibility head"),
    # Candidates come from one frame: there are no paths.
    "path": (False, "LPA represents each candidate using four sources of information."),
    "source_dropout": (0.0, ALL_OF_IT),
    "clip": (math.inf, ALL_OF_IT),
    "oversample": (1, ALL_OF_IT),
    "augment": (False, ALL_OF_IT),
    "average": (False, ALL_OF_IT),
    "max_oracle_error": (math.inf, "each training sample retains the complete $M=10$ candidate set"),
}
LAMBDAS = r"Here we set $\lambda_1=2$ and $\lambda_2=0.2$."
THREE = "Training combines distribution matching, weighted-coordinate localization, and best-candidate ranking."
OBJECTIVE_TEXT = {
    "coordinate": (2.0, LAMBDAS),
    "rank": (0.2, LAMBDAS),
    "visibility": (0.0, THREE),
    "decoded": (0.0, THREE),
}
ADJACENT = "candidate sets of size $M=10$ generated from adjacent MOVi-F frames"
CACHE_TEXT = {
    "masks": (10, ADJACENT),
    "gaps": ((1, 1), ADJACENT),
    "hidden": (0, "dense forward motion provides the oracle target endpoint"),
}
FILTER_TEXT = {
    "disagreement": (2.0, r"A correspondence is retained only when $e_{\mathrm{fb}}\leq2.0$ pixels"),
    "border": (4.0, "both the source and warped target are at least four pixels from the image boundary"),
    "motion": (0.25, "requires a minimum motion magnitude of 0.25 pixels at the native resolution"),
}
ELSEWHERE = (r"\tau_q=4 .", "The complete LPA module contains 3,000,257 trainable parameters.")
TEXTS = (TRACKER_TEXT, TRAINING_TEXT, OBJECTIVE_TEXT, CACHE_TEXT, FILTER_TEXT)
TRACKER, TRAINING, OBJECTIVE, CACHE, FILTER = ({name: value for name, (value, _) in one.items()} for one in TEXTS)
PAPER_TEXT = Path(__file__).parents[2] / "shared/paper"


def test_every_setting_equals_the_text():
    assert PAPER.tracker == TRACKER
    assert PAPER.training == TRAINING
    assert PAPER.objective == OBJECTIVE
    assert PAPER.cache == CACHE
    assert dataclasses.asdict(FlowFilter()) == FILTER
    assert TEMPERATURE == 4  # Eq. 6: tau_q = 4.


@pytest.mark.skipif(not PAPER_TEXT.is_dir(), reason="the text of the paper is not here")
def test_the_words_are_the_papers():
    """Also by number: a value stands in the words that fix it, unless it is a word there or the setting is off."""
    (path,) = PAPER_TEXT.glob("*.txt")
    text = " ".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("%"))
    text = " ".join(text.split())
    for name, (value, words) in (item for one in TEXTS for item in one.items()):
        assert words in text, name
        if words and type(value) in (int, float) and value not in (0, math.inf) and name not in AS_WORDS:
            assert f"{value:g}" in words or f"{value}" in words, name
    assert all(words in text for words in ELSEWHERE)


AS_WORDS = {"windows": "two", "border": "four", "rate": "3e-4", "oversample": "once"}


def numbers(cell):
    return [float(one) for one in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?:e-?\d+)?", cell.replace(",", ""))]


ROWS = {
    "Sources of candidates": ("gaps",),
    "Masks (M)": ("masks",),
    "Share of hidden patches": ("hidden_share",),
    "First masks": ("mask_sharing",),
    "Re-evaluations (R)": ("passes",),
    "Masks of re-evaluations": ("reevaluation",),
    "Patches revealed in exchange": ("reveal",),
    "Crop ratio of later re-evaluations": ("zoom",),
    "Sharpness (beta) and windows": ("sharpness", "windows"),
    "Reduction over colors": ("reduce",),
    "Endpoint": ("subpixel",),
    "Response strength": ("strength",),
    "Visibility": ("visibility_threshold", "calibration"),
    "Network of LPA": ("interaction", "visual", "visibility_head"),
    "Weights of coordinate and best candidate": ("coordinate", "rank"),
    "Weights of visibility and decoded endpoint": ("visibility", "decoded"),
    "Learning rate and batch": ("rate", "batch"),
    "Gradient clipping": ("clip",),
    "Oversampling of sets with disagreeing candidates": ("oversample",),
    "Mirroring, transposing, recoloring": ("augment",),
    "Paths of candidates in the token": ("path",),
    "Dropout of the candidates of a gap": ("source_dropout",),
    "Averaged weights": ("average",),
    "Largest error of the best candidate in a set": ("max_oracle_error",),
    "Frame gaps in training": ("gaps",),
    "Hidden points in training": ("hidden",),
}
"""Rows of the table of both presets in docs/protocol.md, and the settings that each states."""


def test_the_protocol_page_states_both_columns():
    """Every setting has a row, and its cells begin with the values of both presets."""
    shown = {row[0]: row[1:] for row in table(PROTOCOL, "setting")}
    assert list(shown) == list(ROWS)
    ours = dataclasses.asdict(load_world("learned").defaults)
    training = dataclasses.asdict(LpaTraining())
    # The tracker has a batch of its own, which changes memory only.
    ours.pop("batch")
    columns = (
        PAPER.cache | PAPER.tracker | PAPER.training | PAPER.objective,
        PRESETS["default"].cache | ours | training | training["objective"],
    )
    assert {name for names in ROWS.values() for name in names} == set(columns[0])
    for label, names in ROWS.items():
        kinds = (PAPER.cache, PRESETS["default"].cache) if label.endswith("in training") else columns
        for values, cell in zip(kinds, shown[label][:2], strict=True):
            check_cell(label, [values[name] for name in names], cell)


def check_cell(label, values, cell):
    """Numbers in their order; switches as yes or no, or in words that differ between the columns."""
    found = numbers(cell)
    expected = [one for value in values for one in (value if isinstance(value, tuple) else [value])]
    plain = [float(one) for one in expected if type(one) in (int, float) and math.isfinite(one)]
    assert found[: len(plain)] == plain, f"{label}: {cell}"
    if any(one == math.inf for one in expected):
        assert cell.startswith("none"), label
    if all(type(one) is bool for one in expected) and len(expected) == 1 and label != "Endpoint":
        assert cell.startswith("yes" if expected[0] else "no"), label
    for one in expected:
        if isinstance(one, str):
            assert f"`{one}`" in cell, f"{label}: {cell}"


PROTOCOL = Path(__file__).parents[1] / "docs/protocol.md"


def test_no_setting_is_left_to_our_defaults():
    """A field that is added to the tracker or to the training must be decided for the paper, too."""
    memory, free = {"batch"}, {"steps", "save_every", "seed", "keep", "autocast", "init", "objective"}
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
