"""Training of the compact score model: exact resumption, held-out photographs, and what it says to bad input."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from lpa_cwm.adjudicators.apa import FILE, load_compact_score
from lpa_cwm.cli.main import main
from lpa_cwm.errors import InputError
from lpa_cwm.rng import generator
from lpa_cwm.training import score_model
from lpa_cwm.training.score_model import ScoreTraining

SHORT = ScoreTraining(steps=7, batch=2, crop=16, rate=1e-3, save_every=3)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Thirty smooth pictures of 40x48 pixels."""
    folder = tmp_path_factory.mktemp("photos")
    for index in range(30):
        coarse = torch.rand(3, 5, 6, generator=generator("photo", index)).mul(255).byte()
        pixels = np.stack([np.asarray(Image.fromarray(c.numpy()).resize((48, 40))) for c in coarse], axis=-1)
        Image.fromarray(pixels).save(folder / f"photo_{index:02d}.png")
    return folder


def interrupted_after(monkeypatch, updates):
    """Make the given update the last one before a Ctrl-C."""
    genuine, done = score_model.denoising_loss, []

    def loss(*arguments):
        if len(done) == updates:
            raise KeyboardInterrupt
        done.append(None)
        return genuine(*arguments)

    monkeypatch.setattr(score_model, "denoising_loss", loss)


@pytest.mark.parametrize("updates", [2, 3, 5])
def test_interrupted_training_ends_the_same(photos, tmp_path, monkeypatch, updates):
    straight = score_model.train_score_model(photos, tmp_path / "straight", SHORT)
    with monkeypatch.context() as patch:
        interrupted_after(patch, updates)
        with pytest.raises(KeyboardInterrupt):
            score_model.train_score_model(photos, tmp_path / "broken", SHORT)
    assert not (tmp_path / "broken" / FILE).exists()
    resumed = score_model.train_score_model(photos, tmp_path / "broken", SHORT)
    expected = load_file(straight)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in load_file(resumed).items())
    assert (resumed.parent / "log.jsonl").read_text() == (straight.parent / "log.jsonl").read_text()


def test_log_has_a_line_per_checkpoint_and_the_end(photos, tmp_path):
    score_model.train_score_model(photos, tmp_path, SHORT)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [3, 6, 7]
    assert all(0 < line["loss"] < 10 for line in lines)


def test_other_settings_do_not_go_on(photos, tmp_path):
    score_model.train_score_model(photos, tmp_path, SHORT)
    with pytest.raises(InputError, match=r"other settings .*steps was 7 and is 9.*rate was"):
        score_model.train_score_model(
            photos, tmp_path, ScoreTraining(steps=9, batch=2, crop=16, rate=2e-3, save_every=3)
        )


def test_training_learns(photos, tmp_path):
    weights = score_model.train_score_model(
        photos, tmp_path, ScoreTraining(steps=100, batch=4, crop=24, rate=4e-3, save_every=100)
    )
    gain = score_model.denoising_gain(photos, load_compact_score(weights))
    assert np.mean(gain.denoised) > np.mean(gain.noisy) + 0.2


@pytest.mark.slow
def test_shipped_weights_denoise_held_out_photographs_as_their_card_says():
    folder = Path(__file__).parents[2] / "shared" / "data" / "textures"
    if not folder.exists():
        pytest.skip("the photographs are not beside the repository")
    assert "gain 6.35 dB" in str(score_model.denoising_gain(folder, load_compact_score()))


def test_held_out_photographs_are_not_trained_on(photos, tmp_path, monkeypatch):
    seen, genuine = set(), score_model.read_photo
    monkeypatch.setattr(score_model, "read_photo", lambda path, *rest: seen.add(path) or genuine(path, *rest))
    score_model.train_score_model(photos, tmp_path, SHORT)
    trained = set(seen)
    seen.clear()
    score_model.denoising_gain(photos, lambda frames: frames)
    assert seen
    assert not seen & trained
    assert len(seen | trained) == 30


def test_noise_is_at_the_stated_level_and_a_silent_score_gains_nothing(photos):
    gain = score_model.denoising_gain(photos, lambda frames: torch.zeros_like(frames))
    assert gain.noisy == gain.denoised
    assert np.mean(gain.noisy) == pytest.approx(20 * np.log10(2 / 0.0309474), abs=0.03)


def test_crops_depend_on_the_key_alone_and_stay_in_range():
    photos = [torch.randint(256, (3, 60, 80), dtype=torch.uint8, generator=generator("pixels", i)) for i in range(3)]
    first, again, other = (score_model.denoising_crop(photos, 32, generator("crop", i)) for i in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.shape == (3, 32, 32)
    assert first.abs().max() <= 1 + 1e-5


def test_crops_keep_colors():
    photo = torch.tensor([0, 255, 51], dtype=torch.uint8)[:, None, None].expand(3, 50, 50)
    crop = score_model.denoising_crop([photo], 32, generator("flat"))
    torch.testing.assert_close(crop, torch.tensor([-1.0, 1.0, -0.6])[:, None, None].expand(3, 32, 32))


def test_rate_rises_then_falls_to_zero():
    training = ScoreTraining(steps=1000, batch=1, crop=16, rate=0.5, save_every=1)
    rates = [training.rate * training.rate_factor(step) for step in range(1000)]
    top = int(np.argmax(rates))
    assert 15 <= top <= 25
    assert max(rates) == pytest.approx(0.5, rel=0.01)
    assert rates == [*sorted(rates[:top]), *sorted(rates[top:], reverse=True)]
    assert rates[-1] < 1e-5


def test_large_photographs_are_reduced(tmp_path):
    Image.new("RGB", (1000, 640), (10, 20, 30)).save(tmp_path / "large.png")
    assert score_model.read_photo(tmp_path / "large.png").shape == (3, 320, 500)


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--steps=0", "--steps is"),
        ("--batch=0", "--batch is"),
        ("--crop=31", "cannot be run"),
        ("--crop=0", "--crop is"),
        ("--save-every=0", "--save-every is"),
    ],
)
def test_impossible_options_end_in_one_sentence(photos, tmp_path, capsys, option, sentence):
    assert_refused(["--photos", str(photos), "--out", str(tmp_path / "out"), option], sentence, capsys)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "change", [{"steps": 0}, {"batch": 0}, {"crop": 31}, {"save_every": 0}, {"rate": float("nan")}]
)
def test_impossible_settings_are_refused(change):
    with pytest.raises(InputError, match="cannot be run"):
        replace(SHORT, **change)


def test_folder_without_photographs_ends_in_one_sentence(tmp_path, capsys):
    assert_refused(["--photos", str(tmp_path)], "holds 0 photographs", capsys)
    assert_refused(["--photos", str(tmp_path / "nowhere"), "--evaluate"], "holds 0 photographs", capsys)


def test_corrupt_and_small_photographs_end_in_one_sentence(photos, tmp_path, capsys):
    assert_refused(["--photos", str(photos), "--crop", "64", "--out", str(tmp_path)], "has 48x40 pixels", capsys)
    for number in range(40):
        (tmp_path / f"photo_{number}.jpg").write_bytes(b"no picture")
    assert_refused(["--photos", str(tmp_path), "--out", str(tmp_path)], "not a picture", capsys)


def test_folder_without_held_out_photographs_ends_in_one_sentence(tmp_path, capsys):
    Image.new("RGB", (40, 40)).save(tmp_path / "photo_01.png")
    assert_refused(["--photos", str(tmp_path), "--evaluate"], "none of them for the split", capsys)


def test_evaluation_prints_the_gain(photos, capsys):
    main(["train", "score", "--photos", str(photos), "--evaluate"])
    assert "held-out photographs: 36.2" in capsys.readouterr().out


def assert_refused(options, sentence, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train", "score", *options])
    assert stop.value.code == 2
    message = capsys.readouterr().err
    assert sentence in message
    assert message.count("\n") == 1
