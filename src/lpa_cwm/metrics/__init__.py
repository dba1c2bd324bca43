"""Every measure of point tracks, with numpy alone."""
