"""CMC and TAP-Vid as torchmetrics: `update` once per video, `compute` the means; extra `torchmetrics`.

```python
from lpa_cwm.torchmetrics import CMC, TapVid
from torchmetrics import MetricCollection

metrics = MetricCollection([CMC(), TapVid()])
metrics.update(xy, visible, truth_xy, truth_visible, query_frame)
metrics.compute()["dca_avg"]
```

Points are in pixels of the 256 x 256 raster, as everywhere in `lpa_cwm.metrics`. All videos have the same weight, also
over several processes. A video on which a measure is undefined is left out of its mean.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lpa_cwm.errors import require
from lpa_cwm.metrics import METRICS, Measures, cmc, tapvid

require("torchmetrics", extra="torchmetrics")

from torchmetrics import Metric  # noqa: E402

NAMES = tuple(METRICS)


class VideoMean(Metric):
    """Means over videos of the measures of a function."""

    full_state_update = False
    total: Tensor
    known: Tensor

    def __init__(self, measured: Callable[..., Measures], **options: Any) -> None:
        super().__init__()
        self.measured = measured
        self.options = options
        for state in ("total", "known"):
            self.add_state(state, torch.zeros(len(NAMES), dtype=torch.float64), dist_reduce_fx="sum")

    def update(
        self,
        xy: Float[Tensor, "n t 2"],
        visible: Bool[Tensor, "n t"],
        truth_xy: Float[Tensor, "n t 2"],
        truth_visible: Bool[Tensor, "n t"],
        query_frame: Int[Tensor, "n"],
    ) -> None:
        """Add one video.

        Args:
            xy: Predicted positions, in pixels of the 256 x 256 raster.
            visible: Predicted visibility.
            truth_xy: True positions.
            truth_visible: True visibility.
            query_frame: Frame of each query.
        """
        arrays = (value.detach().cpu().numpy() for value in (xy, visible, truth_xy, truth_visible, query_frame))
        values = self.measured(*arrays, **self.options).values
        found = torch.tensor([values.get(name, np.nan) for name in NAMES], dtype=torch.float64, device=self.device)
        self.total += found.nan_to_num(0.0)
        self.known += ~found.isnan()

    def compute(self) -> dict[str, Tensor]:
        """Each measure's mean, as fractions or pixels; measures that no video defines are left out."""
        means = self.total / self.known
        return {name: mean for name, mean in zip(NAMES, means, strict=True) if not mean.isnan()}


class CMC(VideoMean):
    """Completeness-aware motion correspondence; options are those of `lpa_cwm.metrics.cmc`.

    Args:
        options: Options of `lpa_cwm.metrics.cmc`.

    Examples:
        >>> truth, seen = torch.arange(12.0).reshape(1, 6, 2), torch.ones(1, 6, dtype=torch.bool)
        >>> metric = CMC()
        >>> metric.update(truth, seen, truth, seen, torch.tensor([0]))
        >>> float(metric.compute()["dca_avg"])
        1.0
    """

    def __init__(self, **options: float) -> None:
        super().__init__(cmc, **options)


class TapVid(VideoMean):
    """TAP-Vid's measures; options are those of `lpa_cwm.metrics.tapvid`.

    Args:
        options: Options of `lpa_cwm.metrics.tapvid`.

    Examples:
        >>> truth, seen = torch.arange(12.0).reshape(1, 6, 2), torch.ones(1, 6, dtype=torch.bool)
        >>> metric = TapVid()
        >>> metric.update(truth, seen, truth, seen, torch.tensor([0]))
        >>> float(metric.compute()["aj"])
        1.0
    """

    def __init__(self, **options: str) -> None:
        super().__init__(tapvid, **options)
