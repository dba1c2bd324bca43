"""The compact score model: Tweedie's formula, the shipped weights, and files that are not weights."""

import pytest
import torch
from safetensors.torch import save_file

from lpa_cwm.adjudicators.apa import FILE, SIGMA, CompactScore, NoisePredictor, load_compact_score
from lpa_cwm.errors import InputError
from lpa_cwm.files import bundled_weights
from lpa_cwm.geometry import pixel_centers
from lpa_cwm.protocols import ScoreModel
from lpa_cwm.rng import generator


class Gaussian(NoisePredictor):
    """The best possible noise predictor for images whose pixels are independent Gaussians of a known deviation."""

    DEVIATION = 0.4

    def forward(self, frames):
        return SIGMA * frames / (self.DEVIATION**2 + SIGMA**2)


def rings(side=96):
    """A picture of smooth shading and edges two pixels wide, in [-1, 1]."""
    x, y = (pixel_centers((side, side)) / side).unbind(dim=-1)
    edge = torch.tanh(5 * torch.sin(20 * (x - 0.5).hypot(y - 0.4)))
    return torch.stack((x - 0.5 + 0.2 * edge, 0.3 * edge, 0.3 * y * edge - x / 2))


@pytest.fixture(scope="module")
def shipped():
    return load_compact_score()


def test_tweedie_gives_the_exact_score_of_a_gaussian():
    frames = torch.randn(2, 3, 8, 8, generator=generator("gaussian")) * Gaussian.DEVIATION
    expected = -frames / (Gaussian.DEVIATION**2 + SIGMA**2)
    torch.testing.assert_close(CompactScore(Gaussian())(frames), expected)


def test_network_is_small():
    assert sum(parameter.numel() for parameter in NoisePredictor().parameters()) <= 1_000_000
    assert bundled_weights(FILE).stat().st_size <= 4_000_000


def test_shipped_score_denoises(shipped):
    clean = rings()
    noise = SIGMA * torch.randn(clean.shape, generator=generator("rings"))
    left = clean + noise + SIGMA**2 * shipped((clean + noise)[None])[0] - clean
    assert 10 * torch.log10(noise.square().mean() / left.square().mean()) > 3


def test_shipped_score_is_an_ascent_direction(shipped):
    """Where the noise is, the density falls along it: the score points back."""
    clean = rings()
    noise = SIGMA * torch.randn(clean.shape, generator=generator("ascent"))
    score = shipped((clean + noise)[None])[0]
    assert torch.cosine_similarity(score.flatten(), -noise.flatten(), dim=0) > 0.8


def test_batch_equals_single_frames(shipped):
    frames = torch.stack((rings(), rings().flip(-1), -rings()))
    torch.testing.assert_close(shipped(frames), torch.cat([shipped(frame[None]) for frame in frames]))


def test_is_a_score_model(shipped):
    assert isinstance(shipped, ScoreModel)


def write_nothing(path):
    pass


def write_text(path):
    path.write_text("not weights")


def write_another_shape(path):
    save_file(NoisePredictor(channels=8).state_dict(), path)


def write_less(path):
    state = NoisePredictor().state_dict()
    del state["leave.bias"]
    save_file(state, path)


@pytest.mark.parametrize("write", [write_nothing, write_text, write_another_shape, write_less])
def test_wrong_weights_are_refused(tmp_path, write):
    path = tmp_path / "weights.safetensors"
    write(path)
    with pytest.raises(InputError, match="a file of weights of the compact score model"):
        load_compact_score(path)
