"""Scripts that run in other people's environments; `serve.py` says how they are spoken to."""
