"""Small records in MOVi-F's format with motion that is known by construction."""

import numpy as np

from lpa_cwm.simulator.clip import encode_png, example, write_records

LOW, HIGH = -20.0, 20.0


def levels(flow):
    """Pixels to 16 bits, in MOVi-F's channel order (dy, dx)."""
    return np.round((flow[..., ::-1] - LOW) / (HIGH - LOW) * 65535).astype(np.uint16)


def drift(velocity, side=128, frames=4, name="7", sign=1):
    """A whole picture that moves with one velocity (dx, dy) for ever; `sign` -1 stores backward flow the wrong way."""
    flow = np.broadcast_to(np.float32(velocity), (frames, side, side, 2))
    picture = np.random.default_rng(int(name)).integers(0, 256, (frames, side, side, 3), dtype=np.uint8)
    bounds = np.float32([LOW, HIGH])
    return example(
        {
            "normal": [b"never decoded"],
            "video": [encode_png(frame) for frame in picture],
            "forward_flow": levels(flow),
            "backward_flow": levels(sign * flow),
            "metadata/forward_flow_range": bounds,
            "metadata/backward_flow_range": bounds,
            "metadata/video_name": [name.encode()],
        }
    )


def write(path, *records):
    write_records(path, iter(records))
    return path
