"""The published Opt-CWM: a two-frame masked ViT-B predictor and a Gaussian intervention generator."""
