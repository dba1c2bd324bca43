"""RAFT: the published variant, plain references for its parts, and the published flow."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from golden_weights import formula_weights
from lpa_cwm import InputError
from lpa_cwm.baselines.flow_trackers import RangeMapOcclusion, splat_count
from lpa_cwm.baselines.raft import (
    LARGE,
    SMALL,
    SMURF,
    ConvGru,
    CorrelationPyramid,
    Raft,
    RaftFlow,
    load_raft,
    rename_torchvision,
    upsample_convex,
    variant_of,
)
from lpa_cwm.baselines.registry import get_baseline
from lpa_cwm.datasets.download import RAFT
from lpa_cwm.types import Clip, Queries

GOLDEN = Path(__file__).parent / "golden"
KEYS = GOLDEN / "keys"
FLOW = Path(__file__).parents[2] / "shared" / "golden" / "raft_flow.npz"


def rand(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def fetched(name):
    try:
        return RAFT.path(name)
    except InputError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(("variant", "file"), [(SMALL, "raft_small"), (LARGE, "raft_large")])
def test_names_and_shapes_are_the_published_ones(variant, file):
    published = json.loads((KEYS / f"{file}.json").read_text())
    ours = {name: list(tensor.shape) for name, tensor in Raft(variant).state_dict().items()}
    # The published network registers the shortcut's norm twice.
    assert ours == {name: shape for name, shape in published.items() if ".norm3." not in name}


@pytest.mark.parametrize(("variant", "count"), [(SMALL, 990_162), (LARGE, 5_257_536), (SMURF, 5_254_656)])
def test_parameter_counts(variant, count):
    assert sum(parameter.numel() for parameter in Raft(variant).parameters()) == count


@pytest.mark.parametrize(("variant", "name"), [(SMALL, "small"), (LARGE, "large")])
def test_flow_is_the_official_networks(variant, name):
    with np.load(GOLDEN / "raft_tiny.npz") as file:
        first, second, expected = (torch.from_numpy(file[key]) for key in ("frame0", "frame1", name))
    network = Raft(variant)
    network.load_state_dict(formula_weights({key: value.shape for key, value in network.state_dict().items()}))
    flow = RaftFlow(network, iterations=4)(first[None], second[None])[0]
    torch.testing.assert_close(flow[:, 1::3, 1::3], expected, atol=2e-3, rtol=0)


@pytest.mark.skipif(not FLOW.exists(), reason="the official flow (2 MB, needs the published weights) is not here")
@pytest.mark.parametrize("name", ["small", "sintel"])
def test_flow_is_the_published_one(name):
    with np.load(FLOW) as file:
        golden = dict(file)
    first, second = (torch.from_numpy(golden[key]).permute(2, 0, 1) for key in ("frame0", "frame1"))
    flow = RaftFlow(load_raft(fetched(f"raft-{name}.pth")), iterations=12)
    both = flow(torch.stack((first, second)), torch.stack((second, first)))
    for found, direction in zip(both, ("fwd", "bwd"), strict=True):
        assert np.abs(found.numpy() - golden[f"raft_{name}_{direction}"]).max() < 1e-3


def plain_window(volume, x, y, radius, order):
    """Bilinear window of one map, zero outside, one point at a time."""
    height, width = volume.shape

    def at(i, j):
        return float(volume[j, i]) if 0 <= i < width and 0 <= j < height else 0.0

    values = {}
    for dx in range(-radius, radius + 1):
        for dy in range(-radius, radius + 1):
            i, j = math.floor(x) + dx, math.floor(y) + dy
            a, b = x - math.floor(x), y - math.floor(y)
            top = (1 - a) * at(i, j) + a * at(i + 1, j)
            values[dx, dy] = (1 - b) * top + b * ((1 - a) * at(i, j + 1) + a * at(i + 1, j + 1))
    span = range(-radius, radius + 1)
    pairs = [(dx, dy) for dx in span for dy in span] if order == "x first" else [(dx, dy) for dy in span for dx in span]
    return [values[pair] for pair in pairs]


@pytest.mark.parametrize("order", ["x first", "y first"])
def test_look_up_equals_a_plain_loop(order):
    batch, channels, height, width, radius = 2, 3, 8, 11, 2
    source, target = rand(batch, channels, height, width), rand(batch, channels, height, width, seed=1)
    # Cells around, beside and far off the map.
    cell = rand(batch, 2, height, width, seed=2) * 8 + 4
    cell[0, :, 0, 0], cell[0, :, 0, 1], cell[1, :, 2, 2] = torch.tensor([[1e4, -1e4], [3.0, 5.0], [-7.5, 2.0]])
    found = CorrelationPyramid(source, target, radius, order).look_up(cell)
    for b, row, column in [(0, 0, 0), (0, 0, 1), (1, 2, 2), (0, 7, 10), (1, 0, 0), (1, 5, 3), (0, 3, 7)]:
        volume = (source[b, :, row, column, None, None] * target[b]).sum(0)[None, None] / math.sqrt(channels)
        expected = []
        for level in range(4):
            x, y = (float(value) / 2**level for value in cell[b, :, row, column])
            expected += plain_window(volume[0, 0], x, y, radius, order)
            volume = F.avg_pool2d(volume, 2) if level < 3 else volume
        torch.testing.assert_close(found[b, :, row, column], torch.tensor(expected), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("separable", [True, False])
def test_gru_with_its_context_worked_out_equals_the_formula(separable):
    gru = ConvGru(hidden=4, inputs=3 + 5, separable=separable)
    hidden, context, motion = rand(2, 4, 6, 7).tanh(), rand(2, 3, 6, 7, seed=1), rand(2, 5, 6, 7, seed=2)
    expected, inputs = hidden, torch.cat((context, motion), dim=1)
    for suffix, kernel in gru.kernels.items():
        z, r, q = (gru.get_submodule(f"conv{gate}{suffix}") for gate in "zrq")
        pad = (kernel[1] // 2, kernel[1] // 2, kernel[0] // 2, kernel[0] // 2)
        joined = F.pad(torch.cat((expected, inputs), dim=1), pad)
        update, reset = z(joined).sigmoid(), r(joined).sigmoid()
        proposal = q(F.pad(torch.cat((reset * expected, inputs), dim=1), pad)).tanh()
        expected = (1 - update) * expected + update * proposal
    torch.testing.assert_close(gru.step_for(context)(hidden, motion), expected, atol=1e-5, rtol=1e-5)


def test_convex_upsampling_equals_a_plain_loop():
    flow, mask = rand(1, 2, 3, 4), rand(1, 576, 3, 4, seed=1)
    found = upsample_convex(flow, mask)
    padded = F.pad(8 * flow, [1, 1, 1, 1])[0]
    for y in range(24):
        for x in range(32):
            row, column = y // 8, x // 8
            logits = mask[0, :, row, column].view(9, 8, 8)[:, y % 8, x % 8]
            around = padded[:, row : row + 3, column : column + 3].reshape(2, 9)
            expected = (logits.softmax(0) * around).sum(1)
            torch.testing.assert_close(found[0, :, y, x], expected, atol=1e-5, rtol=1e-5)


def untrained(variant=SMALL):
    torch.manual_seed(0)
    return RaftFlow(Raft(variant), iterations=3)


def frames(*shape, seed=0):
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def test_pairs_do_not_depend_on_their_batch():
    flow, some = untrained(), frames(3, 3, 64, 72)
    before, after = some[[0, 1, 0, 2]], some[[1, 0, 2, 0]]
    alone = torch.cat([flow(before[i : i + 1], after[i : i + 1]) for i in range(4)])
    torch.testing.assert_close(flow(before, after), alone, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("hw", [(64, 64), (61, 75), (20, 130)])
@pytest.mark.parametrize("variant", [SMALL, LARGE, SMURF])
def test_frames_of_any_size(variant, hw):
    flow = untrained(variant)(frames(1, 3, *hw), frames(1, 3, *hw, seed=1))
    assert flow.shape == (1, 2, *hw)
    assert flow.isfinite().all()


def test_files_with_the_wrapper_s_prefix_and_the_doubled_norm_load(tmp_path):
    network = untrained(LARGE).network
    state = {f"module.{name}": tensor for name, tensor in network.state_dict().items()}
    state["module.cnet.layer2.0.norm3.weight"] = state["module.cnet.layer2.0.downsample.1.weight"]
    torch.save(state, tmp_path / "raft-things.pth")
    loaded = get_baseline(f"raft:{tmp_path / 'raft-things.pth'}").load().flow.network
    for name, tensor in network.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)


def test_smurf_port_s_names_are_understood():
    """The port has torchvision's names, which prefix each encoder and unit differently."""
    port = json.loads((KEYS / "smurf_torch_port.json").read_text())
    state = rename_torchvision({name: torch.zeros(shape) for name, shape in port.items()})
    assert variant_of(state) == SMURF
    assert {name: tensor.shape for name, tensor in state.items()} == {
        name: tensor.shape for name, tensor in Raft(SMURF).state_dict().items()
    }


def in_tensorflow(state):
    """A SMURF state dict as its authors' framework stores it, with an optimizer's leavings."""
    arrays = {"optimizer_step/.ATTRIBUTES/VARIABLE_VALUE": np.zeros(())}
    for name, tensor in state.items():
        *path, kind = name.split(".")
        path = "/".join(f"layer_with_weights-{part}" if part.isdigit() else part for part in path)
        path = path.replace("mask/layer_with_weights-2", "mask/layer_with_weights-1")
        model = "flow_model" if path.startswith("update_block") else "feature_model"
        array = tensor.permute(2, 3, 1, 0).numpy() if kind == "weight" else tensor.numpy()
        place = f"{model}/{path}/{'kernel' if kind == 'weight' else 'bias'}"
        arrays[f"{place}/.ATTRIBUTES/VARIABLE_VALUE"] = array
        arrays[f"{place}/.OPTIMIZER_SLOT/optimizer/m/.ATTRIBUTES/VARIABLE_VALUE"] = np.zeros_like(array)
    return arrays


def test_smurf_s_variables_load(tmp_path):
    network = untrained(SMURF).network
    arrays = in_tensorflow(network.state_dict())
    assert (
        "feature_model/cnet/layer2/layer_with_weights-0/downsample/layer_with_weights-0/kernel"
        + ("/.ATTRIBUTES/VARIABLE_VALUE")
        in arrays
    )
    assert arrays["flow_model/update_block/gru/convz1/kernel/.ATTRIBUTES/VARIABLE_VALUE"].shape == (1, 5, 384, 128)
    np.savez(tmp_path / "smurf.npz", **arrays)
    loaded = load_raft(tmp_path / "smurf.npz")
    assert loaded.variant == SMURF
    for name, tensor in network.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)


def plain_splat_count(flow):
    _, height, width = flow.shape
    counts = np.zeros((height, width))
    for j in range(height):
        for i in range(width):
            x, y = i + flow[0, j, i], j + flow[1, j, i]
            if not (math.isfinite(x) and math.isfinite(y)):
                continue
            for v in (math.floor(y), math.floor(y) + 1):
                for u in (math.floor(x), math.floor(x) + 1):
                    if 0 <= u < width and 0 <= v < height:
                        counts[v, u] += (1 - abs(x - u)) * (1 - abs(y - v))
    return counts


def test_range_map_equals_a_plain_loop():
    flow = rand(2, 2, 9, 13) * 3
    flow[0, :, 2, 3], flow[1, 0, 4, 4] = torch.nan, 1e9
    found = splat_count(flow)
    for one, counts in zip(flow, found, strict=True):
        np.testing.assert_allclose(counts, plain_splat_count(one.numpy()), atol=1e-5)


def test_smurf_hides_what_the_flow_back_never_lands_on():
    forward, backward = torch.zeros(1, 2, 8, 10), torch.zeros(1, 2, 8, 10)
    backward[0, 0, :, :5] = 40.0  # The left half of the target comes from nowhere.
    xy = torch.tensor([[2.5, 3.5], [7.5, 3.5]])
    strength, visible = RangeMapOcclusion()(forward, backward, xy, xy[None])
    assert visible.tolist() == [[False, True]]
    assert strength.tolist() == [[-1.0, 0.0]]


def test_half_an_occlusion_hides():
    backward = torch.zeros(1, 2, 4, 6)
    backward[0, 0, 1, 2] = 0.5  # Pixel (2, 1) keeps half of what lands on it.
    xy = torch.tensor([[2.5, 1.5]])
    assert RangeMapOcclusion()(backward, backward, xy, xy[None])[1].tolist() == [[False]]
    assert RangeMapOcclusion(limit=0.6)(backward, backward, xy, xy[None])[1].tolist() == [[True]]


def test_smurf_runs_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("LPA_CWM_CACHE", str(tmp_path / "cache"))
    assert "smurf needs its weights: set LPA_CWM_SMURF_CHECKPOINT, or" in str(get_baseline("smurf").missing())
    np.savez(tmp_path / "smurf.npz", **in_tensorflow(untrained(SMURF).network.state_dict()))
    monkeypatch.setenv("LPA_CWM_SMURF_CHECKPOINT", str(tmp_path / "smurf.npz"))
    assert get_baseline("smurf").missing() is None
    tracker = get_baseline("smurf").load(iterations=1)
    asked = Queries(torch.tensor([[10.0, 20.0]]), torch.tensor([0]))
    tracks = tracker.track(Clip(frames(3, 3, 64, 64), "noise"), asked)
    assert tracks.xy.isfinite().all()
    assert tracks.strength is not None
    assert tracks.strength.max() <= 0
    torch.save(untrained(LARGE).network.state_dict(), tmp_path / "raft.pth")
    with pytest.raises(InputError, match="holds the weights of another network than smurf"):
        get_baseline(f"smurf:{tmp_path / 'raft.pth'}").load()
    identities = [get_baseline(f"smurf:{tmp_path / name}").identity() for name in ("smurf.npz", "raft.pth")]
    assert identities[0] == get_baseline("smurf").identity() != identities[1]


def test_other_files_are_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        load_raft(tmp_path / "none.pth")
    (tmp_path / "text.pth").write_text("hello")
    with pytest.raises(InputError, match="does not hold named tensors"):
        load_raft(tmp_path / "text.pth")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(InputError, match="not an archive of arrays"):
        load_raft(tmp_path / "text.npz")
    state = untrained(LARGE).network.state_dict()
    del state["fnet.conv1.bias"]
    torch.save(state, tmp_path / "less.pth")
    with pytest.raises(InputError, match=r"1 tensors differ, first fnet.conv1.bias \(absent instead of \(64,\)\)"):
        load_raft(tmp_path / "less.pth")
