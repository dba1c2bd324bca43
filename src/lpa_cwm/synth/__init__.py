"""Frame pairs for training: layered synthetic scenes, natural video, and shards of pairs on disk."""
