"""The ADM score model against the published layout and against outputs of the original network."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from golden_weights import formula_weights
from lpa_cwm.adjudicators import apa as adm
from lpa_cwm.adjudicators.apa import TIME, noise_std
from lpa_cwm.datasets.download import Download
from lpa_cwm.errors import InputError
from lpa_cwm.protocols import ScoreModel
from lpa_cwm.registry import load_score_model
from lpa_cwm.training import feature_cache

GOLDEN = Path(__file__).parent / "golden"
KEYS = GOLDEN / "keys"


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN / "adm_tiny.npz") as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A file in the published layout, of a narrow network whose weights follow a formula."""
    with torch.device("meta"):
        network = adm.AdmUNet(channels=32, head=16)
    path = tmp_path_factory.mktemp("adm") / "adm_tiny.pt"
    torch.save(formula_weights({name: tensor.shape for name, tensor in network.state_dict().items()}), path)
    return path


@pytest.fixture
def tiny(checkpoint):
    with torch.device("meta"):
        network = adm.AdmUNet(channels=32, head=16)
    network.load_state_dict(adm.load_published_state(checkpoint, network), assign=True)
    return network


def test_layout_is_the_published_one():
    published = json.loads((KEYS / "adm256_uncond.json").read_text())
    with torch.device("meta"):
        network = adm.AdmUNet()
    assert {name: list(tensor.shape) for name, tensor in network.state_dict().items()} == published


def test_parameter_count_is_the_published_one():
    with torch.device("meta"):
        network = adm.AdmUNet()
    assert sum(parameter.numel() for parameter in network.parameters()) == 552_814_086


@pytest.mark.parametrize(("timestep", "name"), [(5.994, "out_t5_994"), (500.0, "out_t500")])
def test_output_is_the_original_networks(tiny, golden, timestep, name):
    with torch.no_grad():
        torch.testing.assert_close(tiny(golden["x"], timestep), golden[name], rtol=1e-5, atol=3e-5)


def test_score_is_the_predicted_noise_over_its_deviation(tiny, golden):
    score = adm.AdmScore(tiny)(golden["x"])
    torch.testing.assert_close(score, -golden["out_t5_994"][:, :3] / 0.0309474, rtol=1e-4, atol=1e-3)


def test_batch_equals_single_frames(tiny, golden):
    frames = torch.cat((golden["x"], golden["x"].flip(-1)))
    score = adm.AdmScore(tiny)
    torch.testing.assert_close(score(frames), torch.cat([score(frame[None]) for frame in frames]), rtol=1e-4, atol=1e-3)


def test_half_precision_spares_normalization_time_and_output(tiny, golden):
    halved = adm.to_half(tiny)
    kinds = {name: parameter.dtype for name, parameter in halved.named_parameters()}
    inner = [name for name in kinds if name.endswith((".in_layers.2.weight", ".qkv.weight", ".skip_connection.bias"))]
    assert {kinds[name] for name in inner} == {torch.float16}
    assert {kinds["time_embed.0.weight"], kinds["out.2.weight"], kinds["middle_block.1.norm.weight"]} == {torch.float32}
    with torch.no_grad():
        output = halved(golden["x"], 5.994)
    assert output.dtype == torch.float32
    torch.testing.assert_close(output, golden["out_t5_994"], rtol=0, atol=0.02)


def test_is_a_score_model(tiny):
    assert isinstance(adm.AdmScore(tiny), ScoreModel)


def test_deviation_is_that_of_the_variance_preserving_diffusion():
    assert noise_std(TIME) == pytest.approx(0.0309474, abs=1e-7)
    steps = torch.linspace(0, TIME, 100_001, dtype=torch.float64)
    kept = torch.exp(-torch.trapezoid(0.1 + 19.9 * steps, steps))
    assert noise_std(TIME) == pytest.approx(float((1 - kept).sqrt()), rel=1e-9)


def test_absent_weights_are_explained(monkeypatch, tmp_path):
    monkeypatch.setenv("LPA_CWM_CACHE", str(tmp_path))
    with pytest.raises(InputError, match=r"256x256_diffusion_uncond\.pt has not been fetched.*data fetch adm`"):
        load_score_model("adm")


def test_a_gpu_gets_half_precision(monkeypatch, tmp_path):
    given = []
    monkeypatch.setattr(adm, "load_adm", lambda path, half: given.append((path, half)))
    monkeypatch.setattr(Download, "path", lambda self, name: tmp_path / name)
    for device in ("cpu", "cuda:1"):
        load_score_model("adm", device)
    assert given == [(tmp_path / "256x256_diffusion_uncond.pt", half) for half in (False, True)]


def test_the_cache_loads_the_score_model_for_its_device(monkeypatch):
    given = []

    def stop(name, device):
        given.append((name, device))
        raise StopIteration

    monkeypatch.setattr(feature_cache, "load_score_model", stop)
    with pytest.raises(StopIteration):
        feature_cache.CacheSettings(score_model="adm").recorder("cuda:1")
    assert given == [("adm", "cuda:1")]


def test_weights_of_another_shape_are_refused(checkpoint):
    with pytest.raises(InputError, match="565 tensors differ"):
        adm.load_adm(checkpoint)


@pytest.mark.parametrize("content", [b"", b"not weights", b"hello\n", b"<html>"])
def test_unreadable_weights_are_refused(tmp_path, content):
    path = tmp_path / "weights.pt"
    path.write_bytes(content)
    with pytest.raises(InputError, match="does not hold named tensors"):
        adm.load_adm(path)


def test_missing_names_are_refused(tmp_path):
    network = adm.AdmUNet(channels=32, head=16)
    state = network.state_dict()
    del state["out.2.bias"]
    torch.save(state, tmp_path / "weights.pt")
    with pytest.raises(InputError, match=r"1 tensors differ, first out\.2\.bias"):
        adm.load_published_state(tmp_path / "weights.pt", network)
