"""Opt-CWM: equal to the plain arithmetic and to the official trace, whatever the batch, mask or grouping."""

import argparse
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from shutil import copyfile

import pytest
import torch
from safetensors.torch import load_file

from lpa_cwm.adjudicators.apa import uniform
from lpa_cwm.baselines.opt_cwm_protocol import OFFICIAL, OfficialTracker, missing_official, to_crop_pixel
from lpa_cwm.cli.main import main
from lpa_cwm.config import TrackerConfig
from lpa_cwm.decode import distribution
from lpa_cwm.errors import InputError
from lpa_cwm.protocols import Tracker, WorldModel
from lpa_cwm.registry import load_world
from lpa_cwm.responses import Responses
from lpa_cwm.tracker import CwmTracker
from lpa_cwm.types import Clip, Queries
from lpa_cwm.worlds.opt_cwm import (
    PUBLISHED,
    OptCwm,
    UnusedKeys,
    load_converted,
    load_folder,
    load_published,
    resize_positions,
    save_converted,
)
from lpa_cwm.worlds.opt_cwm_networks import (
    Architecture,
    PerturbationGenerator,
    Predictor,
    gaussian_perturbation,
    paste,
)

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))
import opt_cwm_reference as reference  # noqa: E402

GOLDEN = ROOT / "tests" / "golden"
BASE, OPT, TRACE = (GOLDEN / f"opt_cwm_tiny_{name}" for name in ("base.pt", "opt.pt", "trace_64x64.safetensors"))
TINY = Architecture(size=64, dim=48, depth=2, heads=3)


def random_world(architecture=TINY, batch=8):
    torch.manual_seed(0)
    world = OptCwm(Predictor(architecture), PerturbationGenerator(architecture.dim), batch).eval()
    with torch.no_grad():
        for parameter in world.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return world


def frames(size=64, seed=1):
    return torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(seed))


def masks(count, patches=64, hidden=57, seed=2):
    draw = torch.rand(count, patches, generator=torch.Generator().manual_seed(seed))
    return draw.argsort(1) < hidden


POINTS = torch.tensor([[30.2, 41.9], [0.0, 63.9], [60.5, 2.5]])


def observe(world, source, target):
    return world.observe(world.describe(source), world.describe(target))


def respond(world, hidden, xy=POINTS):
    scene = observe(world, *frames(world.size))
    return world.intervene(scene, world.imagine(scene, hidden), xy)


def plain(world, hidden, xy=POINTS):
    with torch.no_grad():
        rows = [
            torch.stack([reference.respond(world, *frames(world.size), mask, point) for mask in hidden]) for point in xy
        ]
    return torch.stack(rows)


def test_sizes_are_the_published_ones():
    with torch.device("meta"):
        predictor, generator = Predictor(Architecture()), PerturbationGenerator()
    assert sum(p.numel() for p in predictor.parameters()) == 174_144_960
    assert sum(p.numel() for p in generator.parameters()) == 667_702


def test_it_is_a_world_model():
    assert isinstance(random_world(), WorldModel)


def test_responses_equal_the_plain_arithmetic():
    world, hidden = random_world(), masks(3)
    expected = plain(world, hidden)
    assert expected.abs().max() > 0.01
    torch.testing.assert_close(respond(world, hidden), expected, atol=1e-5, rtol=1e-4)


def test_responses_equal_the_plain_arithmetic_at_twice_the_size():
    world = random_world(replace(TINY, size=128, scale=2))
    hidden = masks(1, patches=256, hidden=230)
    points = torch.tensor([[5.0, 100.0]])
    torch.testing.assert_close(respond(world, hidden, points), plain(world, hidden, points), atol=1e-5, rtol=1e-4)


def test_masks_may_hide_different_numbers_of_patches():
    hidden = torch.cat([masks(1, hidden=count, seed=count) for count in (0, 1, 40, 63, 64)])
    world = random_world()
    torch.testing.assert_close(respond(world, hidden), plain(world, hidden), atol=1e-5, rtol=1e-4)


def test_visible_patches_respond_with_exactly_zero():
    hidden = masks(4)
    open_pixels = hidden.view(4, 8, 8).repeat_interleave(8, 1).repeat_interleave(8, 2)
    response = respond(random_world(), hidden)
    assert (response[:, ~open_pixels[:, None].expand(-1, 3, -1, -1)] == 0).all()
    assert (response != 0).any()


@pytest.mark.parametrize("batch", [1, 2, 5, 100])
def test_the_batch_changes_nothing(batch):
    hidden = masks(3)
    torch.testing.assert_close(respond(random_world(batch=batch), hidden), respond(random_world(), hidden))


def test_queries_and_masks_do_not_influence_each_other():
    world, hidden = random_world(), masks(3)
    scene = observe(world, *frames())
    factual = world.imagine(scene, hidden)
    together = world.intervene(scene, factual, POINTS)
    for row, point in enumerate(POINTS):
        torch.testing.assert_close(world.intervene(scene, factual, point[None])[0], together[row])
    for column in range(3):
        alone = world.intervene(scene, world.imagine(scene, hidden[column : column + 1]), POINTS)
        torch.testing.assert_close(alone[:, 0], together[:, column])


@pytest.mark.parametrize("mode", ["query", "joint"])
def test_the_tracker_gets_the_same_answer_in_any_batch(mode):
    clip = Clip((frames() * 255).byte(), "noise")
    queries = Queries(POINTS, torch.zeros(3, dtype=torch.long))
    config = TrackerConfig(masks=2, reevaluation=mode)
    one, all_ = (
        CwmTracker(random_world(batch=size), uniform, replace(config, batch=size)).track(clip, queries)
        for size in (1, 8)
    )
    torch.testing.assert_close(one.xy, all_.xy, equal_nan=True, atol=1e-2, rtol=0)
    torch.testing.assert_close(one.strength, all_.strength, equal_nan=True)


def test_the_source_is_embedded_once_for_all_targets(monkeypatch):
    world = random_world()
    places = []
    embed = world.predictor.embed
    monkeypatch.setattr(world.predictor, "embed", lambda frame, place: places.append(place) or embed(frame, place))
    source, target, other = (world.describe(frame) for frame in (*frames(), frames()[1] + 0.1))
    scenes = [world.observe(source, target), world.observe(source, other), world.observe(target, source)]
    assert places == [0, 1, 1, 0, 1]
    assert scenes[0].source is scenes[1].source


def test_the_factual_decoder_runs_once_together_with_the_first_intervention(monkeypatch):
    world = random_world()
    sizes = []
    decode = world.predictor.decode
    monkeypatch.setattr(
        world.predictor, "decode", lambda states, layout: sizes.append(len(states)) or decode(states, layout)
    )
    scene = observe(world, *frames())
    factual = world.imagine(scene, masks(2))
    world.intervene(scene, factual, POINTS)
    world.intervene(scene, factual, POINTS)
    assert sizes == [8, 6]


def test_head_and_difference_are_single_precision_under_autocast():
    world, hidden = random_world(), masks(2)
    with torch.autocast("cpu", torch.float16):
        response = respond(world, hidden)
    assert response.dtype == torch.float32
    # Differences of predictions rounded to half precision would be multiples of the spacing of such numbers.
    spacing = 2.0**-14
    assert (response / spacing % 1 != 0).float().mean() > 0.8
    exact = respond(world, hidden)
    assert torch.nn.functional.cosine_similarity(response.flatten(), exact.flatten(), dim=0) > 0.9


def test_frames_of_another_size_are_refused():
    with pytest.raises(InputError, match="48 x 48"):
        random_world().describe(frames(48)[0])


def test_a_perturbation_is_the_normalized_density():
    raw = torch.rand(5, 6, generator=torch.Generator().manual_seed(3)) * 2 - 1
    torch.testing.assert_close(
        gaussian_perturbation(raw), torch.stack([reference.density(six) for six in raw]), atol=1e-5, rtol=1e-4
    )


def test_a_pasted_perturbation_has_its_middle_on_the_query_and_is_cut_at_the_border():
    perturbations = torch.arange(400.0).view(1, 1, 20, 20).expand(3, 3, -1, -1) + 1
    pasted = paste(perturbations, torch.tensor([[30, 20], [0, 0], [63, 5]]), 64)
    assert pasted[0, 0, 20, 30] == perturbations[0, 0, 10, 10]
    torch.testing.assert_close(pasted[0, :, 10:30, 20:40], perturbations[0])
    assert pasted[0].count_nonzero() == 1200
    torch.testing.assert_close(pasted[1, :, :10, :10], perturbations[1, :, 10:, 10:])
    torch.testing.assert_close(pasted[2, :, :15, 53:], perturbations[2, :, 5:, :11])


def tiny():
    return load_published(BASE, OPT, TINY)[0]


def calls(trace, number, name):
    """What the three calls of a pass recorded, as [query mask ...]."""
    return torch.stack([trace[f"call{3 * number + mask}.{name}"] for mask in range(3)], dim=1)


def corners(results, which):
    """(row, column) of the crops."""
    return torch.tensor([[result.crops[which].y, result.crops[which].x] for result in results])


def test_every_call_of_the_official_trace_is_reproduced():
    world, trace = tiny(), load_file(TRACE)
    video = trace["video"][0] * world.std[:, None] + world.mean[:, None]
    tracker = OfficialTracker(world, replace(OFFICIAL, masks=3, passes=2))
    pixel = trace["points_yx"].flip(1)
    passes = list(tracker.passes(*video.unbind(1), pixel, torch.Generator().manual_seed(12345)))
    assert len(passes) == 3
    ends = [torch.stack([result.endpoint for result in results]).flip(1) for results in passes]
    for number, results in enumerate(passes):
        hidden, response = (torch.stack([getattr(g, name) for g in results]) for name in ("hidden", "response"))
        assert torch.equal(hidden, calls(trace, number, "mask")[..., 64:])
        torch.testing.assert_close(response, calls(trace, number, "recon_delta"), atol=1e-5, rtol=0)
        inside = torch.stack([to_crop_pixel(g.crops[0], p) for g, p in zip(results, pixel, strict=True)])
        assert torch.equal(inside.flip(1), calls(trace, number, "pixel_loc_in_input")[:, 0])
        if number:
            assert torch.equal(ends[number - 1] - corners(results, 1), calls(trace, number, "heuristic_loc")[:, 0])
    assert torch.equal(ends[0], trace["out.argmax_pred_pixel_loc"])
    assert torch.equal(ends[2], trace["out.pred_pixel_loc"])
    assert torch.equal(torch.stack([result.strength < 0.05 for result in passes[2]]), trace["out.pred_occ"])
    means = Responses.from_dense(torch.stack([result.mean for result in passes[0]]), 8)
    mean = distribution(means, tracker.config).moments()[0]
    torch.testing.assert_close((mean - 0.5).flip(1), trace["out.expec_pred_pixel_loc"], atol=1e-3, rtol=0)


def test_states_and_interventions_equal_the_official_trace():
    world, trace = tiny(), load_file(TRACE)
    video = trace["video"][0] * world.std[:, None] + world.mean[:, None]
    scene = observe(world, *video.unbind(1))
    for call in range(6):
        part = {name.split(".")[1]: value for name, value in trace.items() if name.startswith(f"call{call}.")}
        states = world.imagine(scene, part["mask"][:, 64:]).states
        row, column = (part["pixel_loc_in_input"] // 8).unbind(1)
        embedding = states[torch.arange(2), row * 8 + column]
        torch.testing.assert_close(embedding, part["query_embedding"], atol=1e-5, rtol=0)
        torch.testing.assert_close(world.generator(embedding), part["perturbation"], atol=1e-5, rtol=0)


def test_the_official_tracker_follows_a_clip():
    pictures = (frames() * 255).byte().repeat(2, 1, 1, 2)[:3]
    clip = Clip(pictures, "noise")
    tracker = OfficialTracker(tiny(), replace(OFFICIAL, masks=2, passes=1))
    assert isinstance(tracker, Tracker)
    queries = Queries(torch.tensor([[100.7, 20.2], [3.0, 60.0]]), torch.tensor([0, 1]))
    tracks = tracker.track(clip, queries)
    assert tracks.xy[0].isfinite().all()
    assert tracks.xy[1, 0].isnan().all()
    assert torch.equal(tracks.xy[:, 2] % 1, torch.full((2, 2), 0.5))
    assert torch.equal(tracker.track(clip, queries).xy.nan_to_num(), tracks.xy.nan_to_num())


def test_official_crops_are_nested_with_truncated_sides_and_hold_query_and_endpoint():
    source, target = torch.rand(2, 3, 90, 122, generator=torch.Generator().manual_seed(4))
    tracker = OfficialTracker(random_world(), replace(OFFICIAL, masks=1, passes=4))
    pixel = torch.tensor([[121, 0]])
    passes = [results[0] for results in tracker.passes(source, target, pixel, torch.Generator().manual_seed(0))]
    assert [(g.crops[1].height, g.crops[1].width) for g in passes] == [
        (90, 122),
        (90, 90),
        (67, 67),
        (50, 50),
        (37, 37),
    ]
    assert [tuple(g.response.shape[-2:]) for g in passes][1:] == [(90, 90), (67, 67), (50, 50), (37, 37)]
    for before, after in pairwise(passes):
        for which, held in ((0, pixel[0]), (1, before.endpoint)):
            outer, inner = before.crops[which], after.crops[which]
            assert outer.x <= inner.x <= held[0] < inner.x + inner.width <= outer.x + outer.width
            assert outer.y <= inner.y <= held[1] < inner.y + inner.height <= outer.y + outer.height


def test_conversion_keeps_every_weight_and_the_architecture(tmp_path):
    world = tiny()
    again = load_converted(save_converted(world, tmp_path / "world.safetensors"))
    assert again.predictor.architecture == TINY
    for name, tensor in world.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])
    torch.testing.assert_close(respond(again, masks(2)), respond(world, masks(2)), atol=0, rtol=0)


def test_what_else_a_checkpoint_holds_is_reported_and_not_used(tmp_path):
    state = torch.load(OPT, weights_only=True)["model"]
    state |= {"flow_predictor.cwm_model.mask_token": torch.ones(1, 1, 48), "recon_cwm_model.a.b": torch.ones(1)}
    torch.save({"model": state, "args": argparse.Namespace(seed=1)}, tmp_path / "opt.pt")
    world, unused = load_published(BASE, tmp_path / "opt.pt", TINY)
    assert unused == UnusedKeys({"flow_predictor.cwm_model": 1, "recon_cwm_model.a": 1})
    assert str(unused) == "flow_predictor.cwm_model.* (1), recon_cwm_model.a.* (1)"
    assert torch.equal(world.predictor.mask_token, tiny().predictor.mask_token)


def test_the_larger_mode_interpolates_both_tables_frame_by_frame():
    small = tiny()
    large, _ = load_published(BASE, OPT, replace(TINY, size=128, scale=2))
    assert large.size == 128
    for name in ("encoder_positions", "decoder_positions"):
        table = getattr(small.predictor, name).view(2, 8, 8, 48)
        wide = torch.nn.functional.interpolate(table[1].permute(2, 0, 1)[None], scale_factor=2, mode="bicubic")
        expected = wide[0].permute(1, 2, 0).flatten(0, 1)
        torch.testing.assert_close(getattr(large.predictor, name)[256:], expected)
    constant = resize_positions(torch.ones(128, 48), large.predictor.architecture)
    torch.testing.assert_close(constant, torch.ones(512, 48))


def test_the_command_converts_and_the_folder_then_needs_the_converted_file_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(PUBLISHED, 256, ("base_cwm_256_ckpt.pt", TINY))
    copyfile(BASE, tmp_path / "base_cwm_256_ckpt.pt")
    copyfile(OPT, tmp_path / "opt_cwm_ckpt.pt")
    before = load_folder(tmp_path, 256)
    main(["data", "convert", "--folder", str(tmp_path)])
    assert capsys.readouterr().out.splitlines() == ["not used: nothing", str(tmp_path / "opt_cwm_256.safetensors")]
    for path in tmp_path.glob("*.pt"):
        path.unlink()
    after = load_folder(tmp_path, 256)
    torch.testing.assert_close(respond(after, masks(2)), respond(before, masks(2)), atol=0, rtol=0)


def test_without_the_published_files_the_way_to_get_them_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LPA_CWM_CACHE", str(tmp_path))
    for name in ("opt-cwm", "opt-cwm-512"):
        with pytest.raises(InputError, match="lpa-cwm data fetch opt-cwm"):
            load_world(name)
    assert "lpa-cwm data fetch opt-cwm" in str(missing_official())
    with pytest.raises(SystemExit):
        main(["data", "convert"])
    assert "does not exist; `lpa-cwm data fetch opt-cwm`" in capsys.readouterr().err


def broken(change):
    def make(tmp_path):
        content = torch.load(BASE, weights_only=True)
        change(content["model"])
        torch.save(content, tmp_path / "base.pt")
        return tmp_path / "base.pt"

    return make


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda folder: folder / "none.pt", "does not exist"),
        (
            lambda folder: (folder / "a.pt").write_bytes(b"<html>") and folder / "a.pt",
            "tensors under 'model'",
        ),
        (broken(lambda state: state.pop("pos_embed")), r"1 tensors differ, first decoder_positions \(absent"),
        (broken(lambda state: state.pop("encoder.blocks.1.attn.v_bias")), r"key_value.bias \(\(48,\) instead"),
        (broken(lambda state: state.update(extra=torch.ones(1))), r"extra \(\(1,\) instead of absent\)"),
        (
            broken(lambda state: state.update(pos_embed=torch.ones(1, 64, 48))),
            r"\(\(64, 48\) instead of \(128, 48\)\)",
        ),
    ],
)
def test_a_file_that_does_not_fit_is_refused_in_one_sentence(tmp_path, make, sentence):
    with pytest.raises(InputError, match=sentence):
        load_published(make(tmp_path), OPT, TINY)


def test_a_base_checkpoint_is_not_a_generator():
    with pytest.raises(InputError, match=r"mlp\S+ \(absent instead"):
        load_published(BASE, BASE, TINY)


def test_an_unconverted_file_is_refused(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match="not a converted"):
        load_converted(tmp_path / "x.safetensors")
    with pytest.raises(InputError, match="does not exist"):
        load_converted(tmp_path / "y.safetensors")
