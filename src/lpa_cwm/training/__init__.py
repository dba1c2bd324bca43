"""Training of the bundled networks: LPA, the compact score model and the world model."""
