"""How fast videos are scored, beside the plain loops that define the measures, in one run.

The loops read the same arrays; a second line gives them lists instead, which Python indexes faster. Ratios are of
processor time, so that other work on the machine does not decide them.
"""

import argparse
import resource
import sys
import time
from pathlib import Path

import numpy as np

from lpa_cwm.metrics import Prediction, Scores, Truth, measure, summarize

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from metrics_reference import plain_cmc, plain_tapvid

TRACKS, FRAMES = 30, 250


def video(seed: int) -> tuple[Prediction, Truth]:
    """Random walks with gaps, predicted with noise and other gaps."""
    rng = np.random.default_rng(seed)
    truth_xy = 128 + rng.normal(size=(TRACKS, FRAMES, 2)).cumsum(axis=1)
    seen, shown = (np.repeat(rng.random((TRACKS, FRAMES // 10)) < 0.85, 10, axis=1) for _ in range(2))
    noise = rng.normal(size=truth_xy.shape) * rng.choice([1, 4, 16], size=(TRACKS, 1, 1))
    return Prediction(truth_xy + noise, shown), Truth(truth_xy, seen, rng.integers(0, FRAMES // 4, TRACKS))


def plain(*arrays) -> dict[str, float]:
    """Every measure of one video by plain loops."""
    return plain_cmc(*arrays) | plain_tapvid(*arrays)


def timed(function, *given) -> tuple:
    """What a function returns, and its processor and wall seconds."""
    processor, wall = time.process_time(), time.perf_counter()
    found = function(*given)
    return found, np.array([time.process_time() - processor, time.perf_counter() - wall])


def main() -> None:
    """Score all videos, and some of them by plain loops as well; summarize; print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--videos", type=int, default=1000, help="videos to score")
    parser.add_argument("--plain", type=int, default=20, help="videos also scored by plain loops, spread over the run")
    options = parser.parse_args()
    measure(*video(0))
    fast, slow, slow_lists, videos = [], [], [], {}
    for seed in range(options.videos):
        given = video(seed)
        found, seconds = timed(measure, *given)
        videos[str(seed)] = found
        fast.append(seconds)
        if seed % max(options.videos // options.plain, 1) == 0:
            arrays = flat(*given)
            slow_lists.append(timed(plain, *(array.tolist() for array in arrays))[1])
            expected, seconds = timed(plain, *arrays)
            slow.append(seconds)
            assert all(abs(found[name] - value) < 1e-9 for name, value in expected.items())
    _, bootstrap = timed(summarize, Scores("random", "noise", videos))
    report(np.array(fast), np.array(slow), np.array(slow_lists), bootstrap)


def flat(prediction: Prediction, truth: Truth) -> tuple:
    """The arrays in the order in which the loops take them."""
    return prediction.xy, prediction.visible, truth.xy, truth.visible, truth.query_frame


def report(fast: np.ndarray, slow: np.ndarray, slow_lists: np.ndarray, bootstrap: np.ndarray) -> None:
    """Print seconds, ratio and memory."""
    processor, wall = fast.sum(axis=0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{len(fast)} videos of {TRACKS} tracks x {FRAMES} frames: {processor:.2f} s ({wall:.2f} s wall)")
    print(f"their means and bootstrap intervals: {bootstrap[0]:.2f} s ({bootstrap[1]:.2f} s wall)")
    for kind, seconds in (("arrays", slow), ("lists", slow_lists)):
        one = seconds[:, 0].mean()
        share = f"{one * 1000:.1f} ms for each of {len(seconds)} videos, so {one * len(fast):.0f} s for all"
        print(f"plain loops over {kind}: {share}; ratio {one / fast[:, 0].mean():.0f}")
    print(f"peak memory of the process: {peak:.0f} MB")


if __name__ == "__main__":
    main()
