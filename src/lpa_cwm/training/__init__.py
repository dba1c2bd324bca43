"""Training of the networks that ship."""
