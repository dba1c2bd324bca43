"""Opt-CWM (Stojanov et al. 2025, arXiv:2503.19953): a masked two-frame ViT-B predictor, a perturbation generator."""
