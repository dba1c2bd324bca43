"""Shape annotations: jaxtyping's where it is installed, plain arrays elsewhere, so that numpy alone is enough."""

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Shaped
else:
    try:
        from jaxtyping import Bool, Float, Int, Shaped
    except ImportError:

        class Shaped:
            """Stands in for a jaxtyping annotation."""

            def __class_getitem__(cls, item: Any) -> type:
                return np.ndarray

        Bool = Float = Int = Shaped

__all__ = ["Bool", "Float", "Int", "Shaped"]
