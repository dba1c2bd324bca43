"""Weights travel through the hub's mixin with their configuration, and come back as the same network."""

import json
from pathlib import Path

import pytest
import torch
from huggingface_hub import HfApi

from lpa_cwm.adjudicators.lpa import LPA, load_lpa, save_lpa
from lpa_cwm.worlds.learned.network import LearnedNetwork, LearnedSizes

NETWORKS = {
    "lpa": (LPA, lambda: LPA(interaction=False, dropout=0.0)),
    "learned": (LearnedNetwork, lambda: LearnedNetwork(LearnedSizes(layers=1, modes=3))),
}


@pytest.fixture(params=NETWORKS)
def kind_and_network(request):
    kind, make = NETWORKS[request.param]
    return kind, make()


def assert_same(first, second):
    assert first.state_dict().keys() == second.state_dict().keys()
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name])


def test_a_saved_network_comes_back_with_its_configuration(kind_and_network, tmp_path):
    kind, network = kind_and_network
    network.save_pretrained(tmp_path)
    found = kind.from_pretrained(tmp_path)
    assert_same(network, found)
    assert not found.training
    assert "apache-2.0" in (tmp_path / "README.md").read_text()


def test_what_is_pushed_is_what_would_be_loaded(kind_and_network, tmp_path, monkeypatch):
    kind, network = kind_and_network
    made = []

    def upload(self, *, folder_path, **given):
        for path in Path(folder_path).iterdir():
            (tmp_path / path.name).write_bytes(path.read_bytes())
        made.append(given["repo_id"])

    monkeypatch.setattr(HfApi, "create_repo", lambda self, repo_id, **given: type("Repo", (), {"repo_id": repo_id}))
    monkeypatch.setattr(HfApi, "upload_folder", upload)
    network.push_to_hub("somebody/network")
    assert made == ["somebody/network"]
    assert json.loads((tmp_path / "config.json").read_text())
    assert_same(network, kind.from_pretrained(tmp_path))


@pytest.mark.parametrize("ablation", [{}, {"interaction": False}, {"visual": False}, {"visibility_head": True}])
def test_files_of_ablated_networks_are_loaded_as_such(ablation, tmp_path):
    network = LPA(**ablation)
    save_lpa(tmp_path / "lpa.safetensors", network.architecture, network.state_dict(), {})
    assert_same(network, load_lpa(tmp_path / "lpa.safetensors"))
