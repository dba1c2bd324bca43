"""Reading and writing: video, what users give, tracks, predictions, weights of others."""
