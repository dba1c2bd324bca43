"""Figure of an explanation: frames, predictions, response distributions and all candidates."""

from pathlib import Path

import numpy as np
import torch
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor

from lpa_cwm.errors import require
from lpa_cwm.explain import Explanation
from lpa_cwm.files import atomic_write
from lpa_cwm.geometry import to_continuous_index
from lpa_cwm.responses import dense_magnitude

QUERY, PEAK, END = "#ffd166", "#ffffff", "#ef476f"
COLUMNS = 5


def to_image(image: Float[Tensor, "3 h w"]) -> np.ndarray:
    """Convert to channels last and clamp to [0, 1]."""
    return rearrange(image.clamp(0, 1), "c h w -> h w c").cpu().numpy()


def show_visible_patches(explained: Explanation, index: int) -> Float[Tensor, "3 h w"]:
    """The target frame with the hidden patches in gray."""
    side = int(explained.hidden.shape[1] ** 0.5)
    scale = explained.target.shape[-1] // side
    hidden = rearrange(explained.hidden[index], "(i j) -> i j", i=side).to(explained.target.device)
    return torch.where(repeat(hidden, "i j -> (i a) (j b)", a=scale, b=scale), 0.5, explained.target)


def overlay_heat(values: Float[Tensor, "h w"], most: float, behind: Float[Tensor, "3 h w"]) -> np.ndarray:
    """A heat map of values over a dim gray picture."""
    from matplotlib import colormaps

    heat = (values / (most + 1e-12)).clamp(0, 1).sqrt().cpu().numpy()
    gray = 0.45 * behind.mean(0).clamp(0, 1).cpu().numpy()
    return (1 - heat[..., None]) * gray[..., None] + heat[..., None] * colormaps["inferno"](0.3 + 0.7 * heat)[..., :3]


def draw_marker(axes, xy: Tensor, color: str, shape: str = "+") -> None:  # noqa: ANN001
    """A cross or a ring at a point; matplotlib puts pixel centers at whole numbers."""
    x, y = to_continuous_index(xy.cpu()).tolist()
    axes.plot(x, y, shape, color=color, markersize=12, markeredgewidth=1.6, fillstyle="none")


def upper_panels(explained: Explanation) -> list[tuple[str, np.ndarray, list[tuple[Tensor, str]]]]:
    """Title, image and marks of the upper row."""
    heaviest = int(explained.weights.argmax())
    shown = [
        ("source and query", to_image(explained.source), [(explained.xy, QUERY)]),
        ("target and answer", to_image(explained.target), [(explained.end, END)]),
        ("visible patches of the heaviest mask", to_image(show_visible_patches(explained, heaviest)), []),
    ]
    if explained.prediction is not None:
        factual = explained.prediction[heaviest]
        shown.append(("factual prediction", to_image(factual), []))
        shown.append(("perturbed prediction", to_image(factual + explained.response[heaviest]), []))
    strength = explained.localization
    shown.append(
        ("weighted response", overlay_heat(strength, float(strength.max()), explained.target), [(explained.first, END)])
    )
    for step, values in enumerate(explained.distributions):
        title = f"distribution after window {step}" if step else "distribution before windows"
        shown.append((title, overlay_heat(values, float(values.max()), explained.target), []))
    return shown


def summary_text(explained: Explanation) -> str:
    """Strength, visibility, support and spread of the result."""
    answer = explained.result
    lines = (
        f"strength {answer.strength[0]:.3f}",
        f"visibility factor {explained.visibility:.2f}",
        f"effective candidates {answer.support[0]:.1f} of {len(explained.weights)}",
        f"spread {answer.spread[0]:.1f} px",
    )
    return "\n".join(lines)


def draw_explanation(explained: Explanation, path: Path) -> None:
    """Draw frames, visible patches, predictions and distributions above, and the candidates by weight below."""
    require("matplotlib", "report")
    from matplotlib.figure import Figure

    upper, order = upper_panels(explained), explained.weights.argsort(descending=True).tolist()
    above, below = -(-(len(upper) + 1) // COLUMNS), -(-len(order) // COLUMNS)
    figure = Figure(figsize=(2.6 * COLUMNS, 2.75 * (above + below)), layout="constrained")
    grid = figure.subplots(above + below, COLUMNS, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, (title, image, marks) in zip(grid[:above].flat, upper, strict=False):
        axes.imshow(image)
        axes.set_title(title, fontsize=9)
        for xy, color in marks:
            draw_marker(axes, xy, color)
    grid[:above].flat[len(upper)].text(0.02, 0.95, summary_text(explained), va="top", fontsize=10, linespacing=1.6)
    strengths = dense_magnitude(explained.response)
    for axes, index in zip(grid[above:].flat, order, strict=False):
        axes.imshow(overlay_heat(strengths[index], float(strengths.max()), explained.target))
        draw_marker(axes, explained.peak[index], PEAK, "o")
        axes.set_title(f"{explained.name(index)}, weight {explained.weights[index]:.2f}", fontsize=8)
    with atomic_write(path) as aside:
        figure.savefig(aside, dpi=110)
