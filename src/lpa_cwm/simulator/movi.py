"""A simulated clip as a MOVi-F record: the same keys, types, signs and channel order."""

from itertools import chain

import numpy as np
from jaxtyping import Float, Int, UInt16

from lpa_cwm.simulator.clip import SimClip
from lpa_cwm.simulator.poses import FOCAL, SENSOR, onto_frame, quaternions
from lpa_cwm.simulator.record import Feature, example, png

LEVELS = 65535


def movi_record(clip: SimClip) -> bytes:
    """The tf.train.Example of a clip."""
    rank = by_visibility(clip)
    return example({**pictures(clip, rank), **flows(clip), **metadata(clip), **camera(clip), **instances(clip, rank)})


def by_visibility(clip: SimClip) -> Int[np.ndarray, "n"]:
    """The bodies in the order of the pixels they cover in the whole clip, most first."""
    bodies = np.stack([clip.body(frame) for frame in range(len(clip))])
    counts = np.bincount(bodies.ravel(), minlength=len(clip.scene.meshes) + 1)
    return np.argsort(-counts[1:], kind="stable")


def to_levels(values: Float[np.ndarray, "*d"], low: float, high: float) -> UInt16[np.ndarray, "*d"]:
    """Numbers of a range as 16-bit whole ones."""
    scaled = (np.clip(values, low, high) - low) / max(high - low, 1e-6)
    return np.round(scaled * LEVELS).astype(np.uint16)


def pictures(clip: SimClip, rank: Int[np.ndarray, "n"]) -> dict[str, Feature]:
    """Everything that is stored as one PNG per frame."""
    frames = range(len(clip))
    label = np.concatenate(([0], 1 + np.argsort(rank))).astype(np.uint8)
    distance = np.stack([clip.distance(frame) for frame in frames])
    low, high = float(distance.min()), float(distance.max())
    return {
        "video": [png(clip.picture(frame)) for frame in frames],
        "segmentations": [png(label[clip.body(frame)][..., None]) for frame in frames],
        "depth": [png(to_levels(distance[frame], low, high)[..., None]) for frame in frames],
        "metadata/depth_range": np.array([low, high]),
        "normal": [png(to_levels(clip.normal(frame), -1.0, 1.0)) for frame in frames],
        "object_coordinates": [png(object_coordinates(clip, frame)) for frame in frames],
    }


def object_coordinates(clip: SimClip, frame: int) -> UInt16[np.ndarray, "h w 3"]:
    """Where in its body's bounding box each pixel lies; zero on the surroundings."""
    hits = clip.hits(frame)
    boxes = [mesh.box for mesh in clip.scene.meshes]
    low = np.stack([np.zeros(3), *(box[0] for box in boxes)])[hits.body]
    high = np.stack([np.ones(3), *(box[-1] for box in boxes)])[hits.body]
    inside = (hits.local.T - low) / (high - low)
    levels = to_levels(np.where(hits.body[:, None] > 0, inside, 0), 0.0, 1.0)
    return levels.reshape(clip.film.size, clip.film.size, 3)


def flows(clip: SimClip) -> dict[str, Feature]:
    """Forward flow to the next frame; backward flow as MOVi has it, the motion that led into the frame."""
    found: dict[str, Feature] = {}
    for name, step in (("forward", 1), ("backward", -1)):
        offset = np.stack([step * clip.flow(frame, frame + step).offset[..., ::-1] for frame in range(len(clip))])
        # What passes behind the camera has no place in the frame; it gets the largest motion.
        limit = 4.0 * clip.film.size
        offset = np.clip(np.nan_to_num(offset, nan=limit), -limit, limit)
        low, high = float(offset.min()), float(offset.max())
        found[f"{name}_flow"] = to_levels(offset, low, high)
        found[f"metadata/{name}_flow_range"] = np.array([low, high])
    return found


def metadata(clip: SimClip) -> dict[str, Feature]:
    """What the clip is."""
    return {
        "metadata/video_name": [clip.name.encode()],
        "metadata/width": np.array([clip.film.size]),
        "metadata/height": np.array([clip.film.size]),
        "metadata/num_frames": np.array([len(clip)]),
        "metadata/num_instances": np.array([len(clip.scene.meshes)]),
        "metadata/motion_blur": np.array([clip.film.shutter]),
        "background": [type(clip.scene.environment).__name__.encode()],
    }


def moments(clip: SimClip) -> Int[np.ndarray, "t"]:
    """The steps of the simulation at which the frames are taken."""
    return np.array([clip.scene.moment(frame) for frame in range(len(clip))])


def camera(clip: SimClip) -> dict[str, Feature]:
    """The camera's way."""
    poses = clip.scene.camera
    return {
        "camera/focal_length": np.array([FOCAL]),
        "camera/sensor_width": np.array([SENSOR]),
        "camera/field_of_view": np.array([2 * np.arctan(SENSOR / (2 * FOCAL))]),
        "camera/positions": poses.position[moments(clip)],
        "camera/quaternions": quaternions(poses.rotation[moments(clip)]),
    }


def instances(clip: SimClip, rank: Int[np.ndarray, "n"]) -> dict[str, Feature]:
    """The bodies: what they are, and where they are in each frame (axes: body, frame, ...)."""
    scene, motion, when = clip.scene, clip.scene.motion, moments(clip)
    found: dict[str, Feature] = {
        "instances/mass": motion.mass[rank],
        "instances/friction": np.full(len(rank), scene.recipe.friction),
        "instances/restitution": np.full(len(rank), scene.recipe.bounce),
        "instances/scale": scene.scale[rank],
        "instances/is_dynamic": motion.tossed[rank].astype(np.int64),
        "instances/asset_id": [scene.meshes[number].name.encode() for number in rank.tolist()],
        "instances/category": np.zeros(len(rank), dtype=np.int64),
        "instances/bboxes_3d": np.stack([corners(clip, number) for number in rank.tolist()]),
        "instances/image_positions": np.stack([centers(clip, number) for number in rank.tolist()]),
    }
    tables = {
        "positions": motion.poses.position,
        "quaternions": motion.quaternion,
        "velocities": motion.velocity,
        "angular_velocities": motion.spin,
    }
    found |= {f"instances/{name}": table[when][:, rank].swapaxes(0, 1) for name, table in tables.items()}
    return found | boxes(clip, rank)


def corners(clip: SimClip, number: int) -> Float[np.ndarray, "t 8 3"]:
    """The corners of a body's bounding box in the world."""
    pose = clip.scene.motion.poses
    box = clip.scene.scale[number] * clip.scene.meshes[number].box
    turn = pose.rotation[moments(clip), number]
    return np.einsum("tij,kj->tki", turn, box) + pose.position[moments(clip), number, None]


def centers(clip: SimClip, number: int) -> Float[np.ndarray, "t 2"]:
    """Where a body's origin appears, as a share of the frame; the corner where it is behind the camera."""
    scene = clip.scene
    points = scene.motion.poses.position[:, number, :, None].astype(np.float32)
    shown = [onto_frame(scene.camera[when].inside(points[when]), 1)[:, 0] for when in moments(clip).tolist()]
    return np.nan_to_num(np.stack(shown))


def boxes(clip: SimClip, rank: Int[np.ndarray, "n"]) -> dict[str, Feature]:
    """Pixels of each body per frame, and the rectangle (top, left, bottom, right) around them where there are any."""
    count = np.zeros((len(rank), len(clip)), dtype=np.int64)
    rectangles: list[list[np.ndarray]] = [[] for _ in rank]
    frames: list[list[int]] = [[] for _ in rank]
    for frame in range(len(clip)):
        body = clip.body(frame)
        for place, number in enumerate(rank):
            rows, columns = np.nonzero(body == number + 1)
            count[place, frame] = len(rows)
            if len(rows):
                edge = np.array([rows.min(), columns.min(), rows.max() + 1, columns.max() + 1]) / clip.film.size
                rectangles[place].append(edge)
                frames[place].append(frame)
    lengths = np.array([len(own) for own in frames])
    return {
        "instances/visibility": count,
        "instances/bboxes/ragged_flat_values": np.array([*chain(*rectangles)], dtype=float),
        "instances/bboxes/ragged_row_lengths_0": lengths,
        "instances/bbox_frames/ragged_flat_values": np.array([*chain(*frames)], dtype=np.int64),
        "instances/bbox_frames/ragged_row_lengths_0": lengths,
    }
