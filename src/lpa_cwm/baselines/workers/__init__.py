"""Scripts that run in the environments of external repositories; `serve.py` defines their protocol."""
