"""Trackers to compare with, by name in `registry`: classical, RAFT family, Opt-CWM, external repositories."""
