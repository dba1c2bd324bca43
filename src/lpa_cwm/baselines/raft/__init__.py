"""RAFT (Teed & Deng 2020), inference only, for the weights its authors published; with two switches also SMURF."""

from lpa_cwm.baselines.raft.network import LARGE, SMALL, SMURF, Layout, Raft, RaftFlow
from lpa_cwm.baselines.raft.weights import load as read_raft

__all__ = ["LARGE", "SMALL", "SMURF", "Layout", "Raft", "RaftFlow", "read_raft"]
