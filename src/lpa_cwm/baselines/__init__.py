"""Other trackers behind the `Tracker` interface."""
