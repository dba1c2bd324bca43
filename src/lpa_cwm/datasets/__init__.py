"""Annotated videos and motion data: readers of their formats, and downloads."""
