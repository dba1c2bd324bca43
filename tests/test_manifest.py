"""A manifest changes with whatever can change a result, and with nothing else."""

import numpy as np
import pytest

from lpa_cwm.config import Selection
from lpa_cwm.datasets.tapvid import load_dataset
from lpa_cwm.errors import InputError
from lpa_cwm.evaluation.predict import Manifest, manifest_of
from tapvid_files import entries, entry, save


def manifest(path, content, **selection):
    return manifest_of(load_dataset(save(path, content), Selection(**selection)))


@pytest.fixture
def content():
    return entries(4, n=5, t=12)


def test_the_order_of_videos_and_the_name_of_the_file_do_not_matter(tmp_path, content):
    turned = dict(reversed(content.items()))
    assert manifest(tmp_path / "a.pkl", content).hash == manifest(tmp_path / "b.pkl", turned).hash


def test_positions_of_hidden_points_do_not_matter(tmp_path, content):
    before = manifest(tmp_path / "a.pkl", content).hash
    for raw in content.values():
        raw["points"][raw["occluded"]] = np.nan
    assert manifest(tmp_path / "a.pkl", content).hash == before


def changed(content, field, place, value):
    first = next(iter(content))
    raw = {key: array.copy() for key, array in content[first].items()}
    raw[field][place] = value
    return content | {first: raw}


def test_everything_else_matters(tmp_path, content):
    first = next(iter(content))
    hidden = content[first]["occluded"].copy()
    variants = [
        content,
        changed(content, "points", (0, 1), 0.5),
        changed(content, "video", (3, 0, 0, 0), content[first]["video"][3, 0, 0, 0] ^ 1),
        changed(content, "occluded", (0, 1), True),
        content | {first: {key: array[::-1] if key != "video" else array for key, array in content[first].items()}},
        {("renamed" if name == first else name): raw for name, raw in content.items()},
        dict(list(content.items())[1:]),
    ]
    hashes = [manifest(tmp_path / "a.pkl", variant).hash for variant in variants]
    selections = [{"max_tracks": 2}, {"frames": 7}, {"videos": ("2",)}, {"queries": "strided"}]
    hashes += [manifest(tmp_path / "a.pkl", content, **selection).hash for selection in selections]
    assert len(set(hashes)) == len(hashes)
    assert np.array_equal(content[first]["occluded"], hidden)


def test_a_manifest_survives_writing(tmp_path, content):
    made = manifest(tmp_path / "a.pkl", content)
    assert Manifest.from_dict(made.to_dict()) == made
    assert Manifest.from_dict(made.to_dict()).hash == made.hash


def test_a_mismatch_is_named(tmp_path, content):
    made = manifest(tmp_path / "a.pkl", content)
    made.check(manifest(tmp_path / "a.pkl", dict(reversed(content.items()))))
    first = next(iter(content))
    other_pixel = content[first]["video"][0, 0, 0, 0] ^ 1
    mismatches = {
        "other pixels in the video set/a0": changed(content, "video", (0, 0, 0, 0), other_pixel),
        "other truth in the video set/a0": changed(content, "points", (0, 1), 0.5),
        "other tracks in the video set/a0": content | {first: entry(n=6, t=12)},
        "lacks 2 of its videos, such as set/a0, set/b1": dict(list(content.items())[2:]),
        "has 1 other videos, such as new": content | {"new": entry()},
    }
    for sentence, other in mismatches.items():
        with pytest.raises(InputError, match=sentence):
            made.check(manifest(tmp_path / "a.pkl", other))
