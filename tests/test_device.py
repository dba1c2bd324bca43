"""The tracker on a device that is not the CPU: the host waits as often for many points as for few."""

import pytest
import torch

import lpa_cwm as lc
from lpa_cwm.registry import bundled_clip
from lpa_cwm.types import Clip, Grid
from simulated_device import NAME, SimulatedDevice

MAX_WAITS = 52
"""Per frame, with three source frames; every wait leaves a GPU idle for some ten microseconds."""


def still(frames):
    """A clip in which every point stays visible where it is, so that all have the same sources."""
    first = bundled_clip("learned")[0]
    return Clip([first] * frames, "still")


def waits_per_frame(side, clip):
    with SimulatedDevice() as device:
        online = lc.load("lpa", device=NAME, workers=1, batch=64).online(clip.name)
        _ = online.step(clip[0])
        for xy in Grid(side).on(clip.hw).xy:
            online.add(xy)
        counts = []
        for frame in range(1, len(clip)):
            device.waits.clear()
            assert online.step(clip[frame])["only"].visible.all()
            counts.append(device.total)
    return counts


def test_host_waits_do_not_depend_on_the_number_of_points():
    few, many = waits_per_frame(3, still(3)), waits_per_frame(6, still(3))
    # The first frame only fills the tables of constants.
    assert few[1:] == many[1:]
    assert max(few[1:]) <= MAX_WAITS


def test_device_gives_the_answers_of_the_cpu():
    clip = Clip([bundled_clip("learned")[index] for index in range(2)], "moving")
    queries = Grid(3).on(clip.hw)
    on_cpu = lc.load("lpa", workers=1).track(clip, queries)
    with SimulatedDevice():
        on_device = lc.load("lpa", device=NAME, workers=1).track(clip, queries)
    assert on_device.visible.equal(on_cpu.visible)
    torch.testing.assert_close(on_device.xy, on_cpu.xy, rtol=0, atol=1e-2)


def test_simulated_device_counts_what_makes_a_host_wait():
    with SimulatedDevice() as device:
        values = torch.arange(6, device=NAME).float()
        assert (device.total, values.device.type) == (0, NAME)
        waiting = (
            lambda: values.tolist(),
            lambda: values[0].item(),
            lambda: bool(values.sum() > 0),
            lambda: values[values > 2],
            lambda: (values > 2).nonzero(),
            lambda: values.unique(),
            lambda: values.new_tensor([1.0]),
            lambda: torch.tensor([1.0]).to(NAME),
            lambda: values[torch.tensor([1, 2])],
        )
        for number, wait in enumerate(waiting, 1):
            wait()
            assert device.total == number
        _ = values.view(2, 3).sum(0).to(torch.float64) + values.new_zeros(3)
        assert device.total == len(waiting)
        with pytest.raises(RuntimeError, match="host and device"):
            _ = values + torch.ones(6)
