"""A simulator of rigid bodies: MuJoCo moves them, embree's rays see them, and every motion is known exactly."""
