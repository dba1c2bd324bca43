"""An explanation as one figure."""

from pathlib import Path

import numpy as np
import torch
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor

from lpa_cwm.errors import need
from lpa_cwm.explain import Explanation
from lpa_cwm.files import written_aside
from lpa_cwm.probe import magnitude

QUERY, PEAK, END = "#ffd166", "#ffffff", "#ef476f"


def picture(image: Float[Tensor, "3 h w"]) -> np.ndarray:
    """Channels last, within range."""
    return rearrange(image.clamp(0, 1), "c h w -> h w c").cpu().numpy()


def open_patches(explained: Explanation, index: int) -> Float[Tensor, "3 h w"]:
    """The target as a mask shows it, the rest grey."""
    side = int(explained.hidden.shape[1] ** 0.5)
    scale = explained.target.shape[-1] // side
    hidden = rearrange(explained.hidden[index], "(i j) -> i j", i=side).to(explained.target.device)
    return torch.where(repeat(hidden, "i j -> (i a) (j b)", a=scale, b=scale), 0.5, explained.target)


def mark(axes, xy: Tensor, colour: str, shape: str = "+") -> None:  # noqa: ANN001
    """A cross at a point; matplotlib puts pixel centres at whole numbers."""
    x, y = (xy.cpu() - 0.5).tolist()
    axes.plot(x, y, shape, color=colour, markersize=11, markeredgewidth=2)


def panels(explained: Explanation) -> list[tuple[str, np.ndarray, list[tuple[Tensor, str]]]]:
    """Title, image and marks of the upper row."""
    heaviest = int(explained.weights.argmax())
    shown = [
        ("source and query", picture(explained.source), [(explained.xy, QUERY)]),
        ("target and answer", picture(explained.target), [(explained.end, END)]),
        ("what the heaviest mask shows", picture(open_patches(explained, heaviest)), []),
    ]
    if explained.prediction is not None:
        factual = explained.prediction[heaviest]
        shown.append(("factual prediction", picture(factual), []))
        shown.append(("perturbed prediction", picture(factual + explained.response[heaviest]), []))
    shown.append(("weighted response", explained.strength.cpu().numpy(), [(explained.first, END)]))
    for step, values in enumerate(explained.distributions):
        shown.append((f"distribution, window {step}", values.cpu().sqrt().numpy(), []))
    return shown


def draw(explained: Explanation, path: Path) -> None:
    """Frames, visible patches, predictions, aggregate and distributions above; the candidates by weight below."""
    need("matplotlib", "report")
    from matplotlib.figure import Figure

    upper, order = panels(explained), explained.weights.argsort(descending=True).tolist()
    columns = max(len(upper), (len(order) + 1) // 2)
    figure = Figure(figsize=(2.3 * columns, 7.6), layout="constrained")
    grid = figure.subplots(3, columns, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, (title, image, marks) in zip(grid[0], upper, strict=False):
        axes.imshow(image, cmap="inferno")
        axes.set_title(title, fontsize=8)
        for xy, colour in marks:
            mark(axes, xy, colour)
    strengths = magnitude(explained.response).cpu()
    for axes, index in zip(grid[1:].flat, order, strict=False):
        axes.imshow(strengths[index].sqrt().numpy(), cmap="inferno", vmin=0, vmax=float(strengths.max()) ** 0.5 + 1e-9)
        mark(axes, explained.peak[index], PEAK, "x")
        axes.set_title(f"mask {index + 1}, weight {explained.weights[index]:.2f}", fontsize=8)
    answer = explained.answer
    figure.suptitle(
        f"strength {answer.strength[0]:.2f}, effective candidates {answer.support[0]:.1f}, "
        f"spread {answer.spread[0]:.1f} px",
        fontsize=10,
    )
    with written_aside(path) as aside:
        figure.savefig(aside, dpi=110)
