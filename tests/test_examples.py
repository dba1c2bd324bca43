"""The examples run and do what they say."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lpa_cwm.io.predictions import read_prediction
from lpa_cwm.io.video import read, write
from lpa_cwm.protocols import Adjudicator, WorldModel

FOLDER = Path(__file__).parents[1] / "examples"


def example(name):
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_example_is_run_here():
    here = Path(__file__).read_text()
    for path in FOLDER.glob("*.py"):
        assert f'"{path.stem}"' in here


def test_tracking_a_video_writes_a_table_and_an_overlay(tmp_path):
    module = example("track_my_video")
    bundled = read(module.DEMO_CLIP)
    write(tmp_path / "short.mp4", [bundled[0], bundled[1]], 12.0)
    tracks = module.main(tmp_path / "short.mp4")
    assert tracks.visible[:, 0].all()
    assert len((tmp_path / "tracks.csv").read_text().splitlines()) == 1 + 3 * 2
    assert len(read(tmp_path / "overlay.mp4")) == 2


def test_a_tracker_of_ones_own_is_scored(tmp_path, capsys):
    example("score_my_tracker").main(tmp_path)
    shown = capsys.readouterr().out
    assert next(line for line in shown.splitlines() if line.startswith("DCA")).split()[2] == "100.00"


def test_an_adjudicator_of_ones_own_is_better_than_none():
    module = example("own_adjudicator")
    assert isinstance(module.agreement, Adjudicator)
    errors = module.main()
    assert errors["agreement"] < errors["uniform"]


def test_a_world_model_of_ones_own_is_followed():
    module = example("own_world_model")
    assert isinstance(module.Panning(), WorldModel)
    # Whole pixels cannot be nearer on average than this.
    assert module.main() < 0.75


def test_measures_need_neither_torch_nor_anything_else_of_ours():
    code = f"""
import sys
for name in ("torch", "av", "einops", "safetensors", "huggingface_hub", "rich", "tyro", "PIL", "jaxtyping"):
    sys.modules[name] = None
import runpy
runpy.run_path({str(FOLDER / "metrics_without_torch.py")!r}, run_name="__main__")
import lpa_cwm as lc
lc.metrics.cmc
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "dca_avg          87.50 %" in result.stdout


def test_the_example_of_measures_counts_the_lost_frame():
    assert example("metrics_without_torch").main()["coverage"] == pytest.approx(7 / 8)


def test_shared_weights_make_a_tracker(tmp_path):
    tracker = example("share_weights").main(tmp_path)
    assert isinstance(tracker.world, WorldModel)
    assert isinstance(tracker.adjudicator, Adjudicator)


def test_an_adjudicator_is_trained_audited_and_compared(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="the extra `report` is not installed")
    folder = example("train_my_adjudicator").main(tmp_path, videos=4, steps=3)
    assert (folder / "lpa/lpa.safetensors").is_file()
    assert (folder / "report/index.html").is_file()
    assert "4 videos" in capsys.readouterr().out
    ends = [read_prediction(folder / f"runs/{name}/other.npz", 3, 3).xy[:, 1:] for name in ("uniform", "lpa")]
    assert not np.array_equal(*ends)


@pytest.mark.parametrize("name", ["track_a_video", "score_a_tracker"])
def test_notebooks_are_executed_and_have_the_code_of_their_scripts(name):
    export = example("notebooks/export")
    held = json.loads((FOLDER / f"notebooks/{name}.ipynb").read_text())
    written = [(cell["cell_type"], cell["source"]) for cell in held["cells"]]
    script = (FOLDER / f"notebooks/{name}.py").read_text()
    assert written == [(kind, text.strip()) for _, kind, text in export.cells(script)]
    assert any(cell.get("outputs") for cell in held["cells"])


def test_the_notebook_about_scoring_shows_what_its_script_prints():
    export = example("notebooks/export")
    held = json.loads((FOLDER / "notebooks/score_a_tracker.ipynb").read_text())
    again = export.notebook(FOLDER / "notebooks/score_a_tracker.py")
    assert again["cells"][-1]["outputs"] == held["cells"][-1]["outputs"]
    assert "x and y exchanged" in held["cells"][-1]["outputs"][0]["text"]
