"""Laws that hold for every world model: described frames are reusable, and a perturbed predictor is Eq. 1."""

import pytest
import torch

from lpa_cwm.geometry import unit_range
from lpa_cwm.masks import mask_pixels, random_masks
from lpa_cwm.protocols import PerturbedPredictor, WorldModel
from lpa_cwm.registry import load_world
from lpa_cwm.responses import to_dense
from lpa_cwm.worlds.learned.network import LearnedNetwork
from lpa_cwm.worlds.learned.world import LearnedWorld
from lpa_cwm.worlds.opt_cwm import OptCwm
from lpa_cwm.worlds.opt_cwm_networks import Architecture, PerturbationGenerator, Predictor
from lpa_cwm.worlds.toy import ToyMotion, ToyWorld, toy_clip

SIZE, PATCH = 64, 8
XY = torch.tensor([[30.2, 41.9], [12.5, 9.5]])
HIDDEN = random_masks(2, (SIZE // PATCH) ** 2, "law")


def learned():
    return LearnedWorld(LearnedNetwork().eval(), size=SIZE)


def opt_cwm():
    architecture = Architecture(size=SIZE, dim=48, depth=2, heads=3)
    return OptCwm(Predictor(architecture), PerturbationGenerator(architecture.dim)).eval()


def average(source, target, hidden):
    """A linear predictor: hidden pixels are three quarters source and a quarter target."""
    mixed = 0.75 * source + 0.25 * target
    return torch.where(mask_pixels(hidden, SIZE // PATCH, PATCH)[:, None], mixed, target)


def mark(source, xy):
    """Raise the pixel that holds the point by one in all channels."""
    marked = source.clone()
    column, row = xy.long().tolist()
    marked[:, row, column] += 1
    return marked


def linear():
    return PerturbedPredictor(average, mark, SIZE, PATCH)


WORLDS = {
    "toy": lambda: ToyWorld(size=SIZE),
    "learned": learned,
    "learned-total": lambda: learned().total_effect(),
    "opt-cwm": opt_cwm,
    "linear": linear,
}


@pytest.fixture(params=WORLDS)
def world(request):
    torch.manual_seed(0)
    return WORLDS[request.param]()


@pytest.fixture(scope="module")
def frames():
    clip = toy_clip(ToyMotion(shift=(0.05, 0.02), turn=0.05), 3, (SIZE, SIZE))
    return [unit_range(clip[index]) for index in range(3)]


def respond(world, source, target, hidden=HIDDEN, xy=XY):
    scene = world.observe(source, target)
    return to_dense(world.intervene(scene, world.imagine(scene, hidden), xy))


def test_every_world_has_the_four_methods(world):
    assert isinstance(world, WorldModel)


def test_described_frames_serve_as_source_and_target_like_fresh_ones(world, frames):
    """A frame is described once; which frames it was paired with before, and as what, changes no answer."""
    described = [world.describe(frame) for frame in frames]
    for source, target in ((0, 1), (1, 0), (0, 2), (2, 0), (1, 1), (0, 1)):
        expected = respond(world, world.describe(frames[source]), world.describe(frames[target]))
        assert torch.equal(respond(world, described[source], described[target]), expected)


def test_describing_and_asking_leave_the_frames_alone(world, frames):
    before = [frame.clone() for frame in frames]
    respond(world, *(world.describe(frame) for frame in frames[:2]))
    assert all(torch.equal(frame, kept) for frame, kept in zip(frames, before, strict=True))


def test_the_response_of_a_linear_predictor_is_the_perturbation_times_its_weight(frames):
    response = respond(linear(), *frames[:2])
    expected = torch.zeros(2, 2, 3, SIZE, SIZE)
    for query, (x, y) in enumerate(XY.long().tolist()):
        for mask in range(2):
            if HIDDEN[mask].view(SIZE // PATCH, -1)[y // PATCH, x // PATCH]:
                expected[query, mask, :, y, x] = 0.75
    assert expected.abs().sum() > 0
    torch.testing.assert_close(response, expected)


def test_learned_total_is_perturb_and_predict_again():
    """The registered world model, with the bundled weights, at its own size."""
    clip = toy_clip(ToyMotion(shift=(0.03, 0.01)), 2)
    source, target = (unit_range(clip[index]) for index in range(2))
    hidden, xy = random_masks(1, 1024, "total"), torch.tensor([[100.0, 120.0]])
    learned = load_world("learned")

    def predict(image):
        scene = learned.observe(learned.describe(image), learned.describe(target))
        return learned.predict(scene, learned.imagine(scene, hidden))

    expected = predict(source + learned.bump.image(xy, (256, 256))[0]) - predict(source)
    total = load_world("learned-total")
    response = respond(total, total.describe(source), total.describe(target), hidden, xy)
    assert expected.abs().max() > 1e-3
    assert torch.equal(response[0], expected)
