"""An explanation shows what the tracker did, and the figure is written."""

import pytest
import torch
from PIL import Image

from lpa_cwm.adjudicators.apa import uniform
from lpa_cwm.cli.main import main
from lpa_cwm.config import TrackerConfig
from lpa_cwm.explain import draw_explanation, explain, show_visible_patches
from lpa_cwm.tracker import CwmTracker
from lpa_cwm.types import Judgement, Queries
from lpa_cwm.worlds.toy import ToyMotion, ToyWorld, toy_clip


def test_it_ends_where_the_tracker_ends():
    clip = toy_clip(ToyMotion(shift=(0.05, 0.02)), 3, (48, 80))
    query = Queries(torch.tensor([[30.0, 20.0]]), torch.tensor([0]))
    tracker = CwmTracker(ToyWorld(size=64, sigma=2.0, error=5.0), uniform, TrackerConfig(masks=4))
    explained = explain(tracker, clip, query, 2)
    tracks = tracker.track(clip, query)
    assert torch.equal(explained.result.xy[0], tracks.xy[0, 2])
    assert explained.weights.tolist() == [0.25] * 4
    torch.testing.assert_close(explained.distributions.sum((1, 2)), torch.ones(3))
    assert len(explained.response) == len(explained.peak) == 4
    shown = (show_visible_patches(explained, 0) != 0.5).any(0).float().mean().item()
    assert shown == pytest.approx(7 / 64, abs=0.02)


def test_with_gaps_it_shows_the_candidates_of_every_source():
    clip = toy_clip(ToyMotion(shift=(0.02, 0.01)), 7, (64, 64))
    query = Queries(torch.tensor([[30.0, 20.0]]), torch.tensor([0]))
    config = TrackerConfig(masks=3, gap_masks=2, gaps=(1, 4), passes=0, visibility_threshold=0.1)
    tracker = CwmTracker(ToyWorld(size=64, sigma=2.0, error=3.0), uniform, config)
    explained = explain(tracker, clip, query, 6)
    assert torch.equal(explained.result.xy[0], tracker.track(clip, query).xy[0, 6])
    assert explained.frame.tolist() == [0, 0, 0, 5, 5, 2, 2]
    assert [explained.name(index) for index in (2, 3, 6)] == [
        "mask 3 from frame 0",
        "mask 1 from frame 5",
        "mask 2 from frame 2",
    ]
    assert len(explained.hidden) == len(explained.response) == 7


def half_visible(pair, candidates):
    judgement = uniform(pair, candidates)
    return Judgement(judgement.weights, judgement.visibility / 2)


@pytest.mark.parametrize(("passes", "sight"), [(0, 0.5), (1, 1.0)])
def test_it_says_how_far_the_point_was_believed_to_be_seen(passes, sight):
    """A re-evaluation asks no adjudicator, so that it has no part in the strength of what that finds."""
    clip = toy_clip(ToyMotion(), 2, (64, 64))
    query = Queries(torch.tensor([[30.0, 20.0]]), torch.tensor([0]))
    answers = [
        explain(CwmTracker(ToyWorld(size=64, sigma=2.0), judge, TrackerConfig(passes=passes)), clip, query, 1)
        for judge in (uniform, half_visible)
    ]
    assert [one.visibility for one in answers] == pytest.approx([1.0, sight])
    plain, less = (one.result.strength.item() for one in answers)
    assert less == pytest.approx(plain * sight)


def test_the_figure_has_the_shape_of_the_clip(tmp_path):
    clip = toy_clip(ToyMotion(), 2, (40, 80))
    tracker = CwmTracker(ToyWorld(size=64, sigma=2.0), uniform, TrackerConfig(masks=2))
    explained = explain(tracker, clip, Queries(torch.tensor([[30.0, 20.0]]), torch.tensor([0])), 1)
    sizes = {}
    for hw in (clip.hw, (64, 64)):
        draw_explanation(explained, tmp_path / "why.png", hw)
        with Image.open(tmp_path / "why.png") as drawn:
            sizes[hw] = drawn.size
    wide, square = sizes.values()
    assert wide[0] == pytest.approx(square[0], rel=0.03)
    assert wide[1] < 0.65 * square[1]


def test_the_figure(tmp_path, capsys):
    out = tmp_path / "why.svg"
    main(["explain", "--world", "toy", "--point", "100,100@0", "--target", "3", "--masks", "3", "--out", str(out)])
    drawn = out.read_text()
    assert drawn.count("<image") >= 3 + 1 + 3 + 3
    assert capsys.readouterr().out.strip() == str(out)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--target", "99"], "target frame is 99"),
        (["--adjudicator", "dis"], "not a known adjudicator"),
        (["--out", "why"], "must end in .png, .pdf or .svg"),
    ],
)
def test_what_cannot_be_explained(tmp_path, capsys, options, said):
    with pytest.raises(SystemExit) as stop:
        main(["explain", "--world", "toy", "--out", str(tmp_path / "x.png"), *options])
    assert stop.value.code == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
