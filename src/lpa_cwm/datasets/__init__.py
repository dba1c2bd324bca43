"""Readers, generators and writers of video and motion data."""
