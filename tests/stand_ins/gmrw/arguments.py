"""Stand-in for GMRW's options."""

import argparse


def train_args(string=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--temp", default=0, type=float)
    parser.add_argument("--no_of_frames", default=2, type=int)
    parser.add_argument("--compute_flow_method", default="weighted_sum")
    parser.add_argument("--eval_only", action="store_true")
    return parser.parse_args(string.split()) if string is not None else parser.parse_args()
