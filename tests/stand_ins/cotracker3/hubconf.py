"""Stand-in for CoTracker's `torch.hub` entry points."""


def cotracker3_offline(*, pretrained=True, **kwargs):
    from cotracker.predictor import CoTrackerPredictor

    assert not pretrained, "weights would be downloaded"
    return CoTrackerPredictor(checkpoint=None, window_len=60)
