"""Prediction runs and their scores."""
