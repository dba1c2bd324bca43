"""Reading and writing: video, users' input, tracks, predictions, published weights."""
