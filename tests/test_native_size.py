"""Data sets hand out native frames; predictions and scores do not depend on who resizes them to the raster."""

from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest
import torch
from einops import rearrange

from lpa_cwm.baselines.flow_trackers import PairwiseTracker
from lpa_cwm.config import Selection
from lpa_cwm.datasets.tapvid import load_dataset
from lpa_cwm.evaluation.predict import EvaluationRun, Method, PredictJob, make_tracker, manifest_of, write_runs
from lpa_cwm.evaluation.score import ScoredRun, score_run
from lpa_cwm.geometry import rescale, resize_frame
from lpa_cwm.io.predictions import prediction_path, read_prediction
from lpa_cwm.protocols import Dataset
from lpa_cwm.registry import load_world
from lpa_cwm.types import Clip, Queries, Sample, Tracks
from lpa_cwm.worlds.toy import ToyMotion, toy_clip, toy_truth
from tapvid_files import save

NATIVE, RASTER = (480, 854), (256, 256)
MOTION = ToyMotion(shift=(0.01, -0.02))
POINTS = torch.tensor([[0.3, 0.4], [0.52, 0.61], [0.71, 0.33]])


@dataclass
class InMemory:
    """Annotated videos that no file holds."""

    samples: list[Sample]
    name: str = "memory"
    path: Path = Path("memory")
    selection: Selection = field(default_factory=Selection)

    @property
    def names(self):
        return [sample.clip.name for sample in self.samples]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]

    def fingerprint(self, index):
        clip = self.samples[index].clip
        return blake2b(b"".join(clip[t].numpy().tobytes() for t in range(len(clip)))).hexdigest()


def toy_entry(hw=NATIVE, frames=3):
    """A TAP-Vid entry of the toy world."""
    clip = toy_clip(MOTION, frames, hw)
    queries = Queries(POINTS * torch.tensor([hw[1], hw[0]]), torch.zeros(len(POINTS), dtype=torch.long))
    truth = toy_truth(MOTION, queries, frames, hw)
    video = np.stack([rearrange(clip[t], "c h w -> h w c").numpy() for t in range(frames)])
    points = (truth.xy / torch.tensor([hw[1], hw[0]])).float().numpy()
    return {"video": video, "points": points, "occluded": ~truth.visible.numpy()}


def resized_first(dataset):
    """The same videos with frames, queries and truth on the raster before any tracker sees them."""
    return InMemory([on_raster(dataset[index]) for index in range(len(dataset))])


def on_raster(sample):
    clip, hw = sample.clip, sample.clip.hw
    frames = torch.stack([resize_frame(clip[t], RASTER) for t in range(len(clip))])
    return Sample(
        Clip(frames, clip.name, clip.fps),
        Queries(rescale(sample.queries.xy, hw, RASTER), sample.queries.frame),
        Tracks(rescale(sample.truth.xy, hw, RASTER), sample.truth.visible),
    )


def brightness_flow(before, after):
    """Flow that depends on pixels and size, so that another working size gives other tracks."""
    change = (after.float() - before.float()).mean(1, keepdim=True)
    return torch.cat((change, -change), dim=1) * before.shape[-1] / 1000


def one_tracker(tracker):
    return lambda clip, queries: {"method": tracker.track(clip, queries)}


def evaluated(dataset, make, folder):
    run = EvaluationRun("method", {}, str(dataset.path), dataset.selection, manifest_of(dataset))

    def make_keyed():
        track = make()
        return lambda clip, queries: {str(folder): track(clip, queries)["method"]}

    write_runs(PredictJob(dataset, make_keyed), {folder: run})
    found = [
        read_prediction(prediction_path(folder, name), len(dataset[i].queries), 3)
        for i, name in enumerate(dataset.names)
    ]
    return found, score_run(ScoredRun.of(folder, dataset, run.manifest))[0]


METHODS = {
    "world model": partial(make_tracker, [("method", Method("uniform", "toy"))], {"toy": load_world("toy")}),
    "flow": partial(one_tracker, PairwiseTracker(brightness_flow)),
    "baseline": partial(make_tracker, [("method", Method("static"))], {}),
}


@pytest.mark.parametrize("method", METHODS)
def test_native_frames_give_what_resizing_first_gave(tmp_path, method):
    dataset = load_dataset(save(tmp_path / "native.pkl", {"a": toy_entry(), "b": toy_entry((300, 200))}))
    assert [dataset[index].clip.hw for index in range(2)] == [NATIVE, (300, 200)]
    native, native_scores = evaluated(dataset, METHODS[method], tmp_path / "native")
    first, first_scores = evaluated(resized_first(dataset), METHODS[method], tmp_path / "first")
    for one, other in zip(native, first, strict=True):
        np.testing.assert_allclose(one.xy, other.xy, atol=1e-3)
        assert np.array_equal(one.visible, other.visible)
    for name in dataset.names:
        for measure, value in first_scores.videos[name].values.items():
            if measure == "latency":
                continue
            np.testing.assert_allclose(native_scores.videos[name][measure], value, atol=1e-3, err_msg=measure)


def test_flow_at_the_native_size_is_another_tracker(tmp_path):
    sample = load_dataset(save(tmp_path / "native.pkl", {"a": toy_entry()}))[0]
    raster, native = (PairwiseTracker(brightness_flow, size=size) for size in (256, None))
    assert not torch.allclose(*(one.track(sample.clip, sample.queries).xy for one in (raster, native)), atol=0.1)


def test_any_dataset_is_predicted_and_scored(tmp_path):
    dataset = resized_first(load_dataset(save(tmp_path / "native.pkl", {"a": toy_entry()})))
    assert isinstance(dataset, Dataset)
    found, scores = evaluated(dataset, METHODS["world model"], tmp_path / "run")
    error = np.abs(found[0].xy - dataset[0].truth.xy.numpy())[dataset[0].truth.visible.numpy()]
    assert error.max() < 1
    assert scores.dataset == "memory"
