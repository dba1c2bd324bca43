"""Half precision and compilation change answers by rounding; the batch of a GPU follows its free memory."""

import pytest
import torch
from torch import nn

import lpa_cwm as lc
from lpa_cwm import acceleration
from lpa_cwm.cli.main import main
from lpa_cwm.config import TrackerConfig
from lpa_cwm.registry import bundled_clip
from lpa_cwm.types import Clip, Grid
from lpa_cwm.worlds.opt_cwm import OptCwm
from lpa_cwm.worlds.opt_cwm_networks import Architecture, PerturbationGenerator, Predictor

GIGABYTE = 2**30


def tracks(**settings):
    clip = Clip([bundled_clip("learned")[index] for index in range(2)], "bundled")
    return lc.load("lpa", workers=1, **settings).track(clip, Grid(3))


def test_half_precision_moves_answers_by_fractions_of_a_pixel():
    exact, rounded = tracks(), tracks(accelerate=["bfloat16"])
    assert rounded.visible.equal(exact.visible)
    torch.testing.assert_close(rounded.xy, exact.xy, rtol=0, atol=0.5)
    assert not rounded.xy.equal(exact.xy)


@pytest.mark.slow
def test_compiled_networks_give_the_same_answers(monkeypatch):
    """With torch's reference backend, which traces like the default one and generates no code."""
    monkeypatch.setattr(acceleration, "compile_network", lambda network: network.compile(backend="eager"))
    exact, compiled = tracks(), tracks(accelerate=["compile"])
    torch.testing.assert_close(compiled.xy, exact.xy, rtol=0, atol=1e-3)


def test_all_networks_are_compiled(monkeypatch):
    compiled = []
    monkeypatch.setattr(acceleration, "compile_network", compiled.append)
    tracker = lc.load("lpa", accelerate=["compile"])
    assert compiled == [*tracker.world.networks, *tracker.adjudicator.networks]


def test_opt_cwm_in_half_precision_answers_in_float32_and_nearly_the_same():
    torch.manual_seed(0)
    architecture = Architecture(size=64, dim=48, depth=2, heads=3)
    world = OptCwm(Predictor(architecture), PerturbationGenerator(architecture.dim)).eval()
    frame, hidden = torch.rand(3, 64, 64), torch.rand(2, 64) < 0.9

    def response():
        described = world.describe(frame)
        scene = world.observe(described, described)
        return world.intervene(scene, world.imagine(scene, hidden), torch.tensor([[20.0, 30.0]]))

    exact = response()
    acceleration.accelerate((world,), "cpu", ["bfloat16"])
    rounded = response()
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, exact, rtol=0, atol=0.02)
    assert not rounded.equal(exact)


def test_queries_at_once_follow_the_free_memory(monkeypatch):
    free = {"cuda": 24 * GIGABYTE}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free[device], 80 * GIGABYTE))
    assert lc.load("uniform", device="cuda").config.batch == 204
    assert lc.load("uniform", device="cuda", batch=7).config.batch == 7
    assert lc.load("uniform", config=TrackerConfig(batch=9), device="cuda").config.batch == 9
    free["cuda"] = GIGABYTE // 64
    assert lc.load("uniform", device="cuda").config.batch == 1
    free["cuda"] = 10_000 * GIGABYTE
    assert lc.load("uniform", device="cuda").config.batch == acceleration.MAX_QUERIES


def test_what_has_no_networks_is_refused():
    with pytest.raises(lc.InputError, match="neither the world model nor the adjudicator"):
        lc.load("uniform", "toy", accelerate=["bfloat16"])
    with pytest.raises(lc.InputError, match="does not take accelerate"):
        lc.load("static", accelerate=["compile"])
    with pytest.raises(lc.InputError, match="'half' is not a known acceleration"):
        lc.load("lpa", accelerate=["half"])


@pytest.mark.parametrize("option", [("--accelerate", "compile"), ("--workers", "2")])
def test_baselines_refuse_the_options(option, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["track", "--tracker", "static", *option])
    assert stopped.value.code == 2
    assert f"{option[0]} was given, but static has no such choice" in capsys.readouterr().err.replace("\n", " ")


def test_attention_is_fused():
    """Both transformers of Opt-CWM and all others call torch's fused attention."""
    predictor = Predictor(Architecture(size=64, dim=48, depth=2, heads=3))
    called = []

    def counted(*given, **named):
        called.append(1)
        return fused(*given, **named)

    fused, nn.functional.scaled_dot_product_attention = nn.functional.scaled_dot_product_attention, counted
    try:
        world = OptCwm(predictor, PerturbationGenerator(48)).eval()
        described = world.describe(torch.rand(3, 64, 64))
        scene = world.observe(described, described)
        world.intervene(scene, world.imagine(scene, torch.rand(1, 64) < 0.9), torch.tensor([[20.0, 30.0]]))
    finally:
        nn.functional.scaled_dot_product_attention = fused
    # Two blocks each: encoder without and with the perturbation in turn, decoder for both at once.
    assert len(called) == 6
