"""The estimates of single frames, and the table that keeps those of a clip."""

import torch

from lpa_cwm.estimates import EVIDENCE, EstimateTable, FrameEstimate


def estimate(tracks: int, frame: int) -> FrameEstimate:
    """Estimates that differ by track, frame and field."""
    draw = torch.Generator().manual_seed(frame)
    values = torch.rand(tracks, 6 + len(EVIDENCE), generator=draw)
    return FrameEstimate(values[:, :2], values[:, 2] > 0.5, *values[:, 2:6].unbind(1), values[:, 6:])


def test_a_table_has_what_was_appended() -> None:
    frames = [estimate(3, frame) for frame in range(150)]
    table = EstimateTable()
    for one in frames:
        table.append(one)
    tracks = table.to_tracks()
    for name in ("xy", "visible", "strength", "support", "spread", "confidence"):
        assert torch.equal(getattr(tracks, name), torch.stack([getattr(one, name) for one in frames], dim=1))
    assert torch.equal(table.stacked("evidence"), torch.stack([one.evidence for one in frames], dim=1))
    assert torch.equal(table.to_tracks(first=147).xy, tracks.xy[:, 147:])


def test_frames_that_were_not_reached_and_tracks_that_came_later_are_nowhere() -> None:
    table = EstimateTable()
    table.append(estimate(1, 0))
    table.append(estimate(2, 1))
    tracks = table.to_tracks(total=4)
    assert tracks.xy.shape == (2, 4, 2)
    assert tracks.xy.isnan().any(-1).tolist() == [[False, False, True, True], [True, False, True, True]]
    assert not tracks.visible[:, 2:].any()
    assert not tracks.visible[1, 0]


def test_a_table_outlives_its_estimates_by_few_tensors() -> None:
    """Nothing of an estimate is kept: small tensors among large ones would let memory grow with the clip."""
    table, one = EstimateTable(), estimate(2, 0)
    table.append(one)
    kept = {value.untyped_storage().data_ptr() for value in table.columns.values()}
    assert not kept & {value.untyped_storage().data_ptr() for value in (one.xy, one.visible, one.strength)}
    assert len(kept) == len(table.columns)
