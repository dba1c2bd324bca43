"""The torchmetrics shells say what the plain functions say, over updates, collections and processes."""

import numpy as np
import pytest
import torch

from lpa_cwm import metrics

pytest.importorskip("torchmetrics", reason="the extra `torchmetrics` is not installed")

from torchmetrics import MetricCollection

from lpa_cwm.torchmetrics import CMC, TapVid


def video(seed):
    """Walks, predictions beside them and queries; in the first video nothing is ever hidden."""
    draw = torch.Generator().manual_seed(seed)
    truth = 128 + torch.randn(4, 9, 2, generator=draw).cumsum(1) * 3
    hidden = torch.rand(4, 9, generator=draw) < 0.3 * bool(seed)
    hidden[:, 0] = False
    xy = truth + torch.randn(4, 9, 2, generator=draw) * 3
    visible = torch.rand(4, 9, generator=draw) < 0.8
    return xy, visible, truth, ~hidden, torch.zeros(4, dtype=torch.long)


VIDEOS = [video(seed) for seed in range(3)]


def plain_means(measured):
    """Means over videos by numpy, undefined ones left out."""
    values = [measured(*(part.numpy() for part in one)).values for one in VIDEOS]
    table = {name: np.array([each[name] for each in values]) for name in values[0]}
    return {name: column[~np.isnan(column)].mean() for name, column in table.items() if not np.isnan(column).all()}


@pytest.mark.parametrize(("shell", "measured"), [(CMC, metrics.cmc), (TapVid, metrics.tapvid)])
def test_means_over_videos_are_those_of_the_functions(shell, measured):
    metric = shell()
    for one in VIDEOS:
        metric.update(*one)
    found = {name: value.item() for name, value in metric.compute().items()}
    assert found == pytest.approx(plain_means(measured))


def test_undefined_videos_are_left_out_not_counted_as_zero():
    metric = CMC()
    metric.update(*VIDEOS[0])
    assert "vis_ba" not in metric.compute()
    metric.update(*VIDEOS[1])
    assert metric.compute()["vis_ba"].item() == pytest.approx(metrics.cmc(*(p.numpy() for p in VIDEOS[1]))["vis_ba"])


def test_states_of_two_processes_add_up():
    whole, first, second = CMC(motion=2.0), CMC(motion=2.0), CMC(motion=2.0)
    for one in VIDEOS:
        whole.update(*one)
    first.update(*VIDEOS[0])
    for one in VIDEOS[1:]:
        second.update(*one)
    # What torchmetrics does between processes: states declared as sums are added.
    assert all(reduce is torch.sum or reduce.__name__ == "dim_zero_sum" for reduce in whole._reductions.values())
    first.total += second.total
    first.known += second.known
    torch.testing.assert_close(first.compute(), whole.compute())


def test_they_live_in_a_collection_and_reset():
    collection = MetricCollection([CMC(), TapVid(mode="first")])
    collection.update(*VIDEOS[1])
    assert {"dca_avg", "coverage", "aj", "oa"} <= set(collection.compute())
    collection.reset()
    assert not any(state.any() for metric in collection.values() for state in (metric.total, metric.known))
