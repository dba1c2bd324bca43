"""The tutorial on the paper's experiments, as a user with the published files would run it: all of its commands.

The files of Opt-CWM and ADM are those of tiny networks, in the published formats and under the published names. The
records are in MOVi-F's format with motion that is known by construction, because the golden record's flow is random.
"""

import re
import shlex
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch

from golden_weights import formula_weights
from lpa_cwm.adjudicators import apa as adm
from lpa_cwm.cli.main import main
from lpa_cwm.datasets.download import Download
from lpa_cwm.worlds import opt_cwm as world
from movi_files import drift, write
from tapvid_files import entries, save
from test_docs import blocks
from test_opt_cwm import BASE, OPT, TINY

PAGE = Path(__file__).parents[1] / "docs/tutorials/paper_experiments.md"
LEFT_OUT = ("data fetch", "data convert", "doctor", "--tracker raft", "--dry-run", "lpa-cwm paper")
"""Commands that need the network or files that are not here, and the one that does all of this again."""
FEW = {
    "eval sweep": ["--queries", "2", "--videos", "2"],
    "train lpa": ["--steps", "2"],
    "eval ablate": ["--steps", "1"],
}


def tutorial(data):
    """The commands of the page for one benchmark, in words."""
    for line in "\n".join(blocks(PAGE, "sh")).splitlines():
        for part in re.split(r"; do |; done", line):
            words = part.split(" #")[0].strip()
            if words.startswith("lpa-cwm") and not any(name in words for name in LEFT_OUT):
                words = words.replace(" --device cuda", "").replace("$part", "--videos 1 --max-tracks 1 --frames 2")
                words = words.replace("tapvid_davis/tapvid_davis.pkl", str(data)).replace("$data", str(data))
                yield shlex.split(words.replace("$name", "davis"))[1:]


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A folder with the published files, tiny, and the data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LPA_CWM_CACHE", str(tmp_path / "fetched"))
    (tmp_path / "fetched/opt-cwm").mkdir(parents=True)
    base, _ = world.PUBLISHED[256]
    shutil.copy(BASE, tmp_path / "fetched/opt-cwm" / base)
    shutil.copy(OPT, tmp_path / "fetched/opt-cwm" / world.PUBLISHED_GENERATOR)
    monkeypatch.setitem(world.PUBLISHED, 256, (base, TINY))
    monkeypatch.setattr(adm, "AdmUNet", partial(adm.AdmUNet, channels=32, head=16))
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in adm.AdmUNet().state_dict().items()}
    # Half precision in the file, as in some copies: it must run on a CPU all the same.
    torch.save({name: tensor.half() for name, tensor in formula_weights(shapes).items()}, tmp_path / "adm.pt")
    monkeypatch.setattr(Download, "path", lambda self, name: tmp_path / "adm.pt")
    records = [drift((3.0, 1.0), name=str(number)) for number in range(24)]
    (tmp_path / "movi_f").mkdir()
    write(tmp_path / "movi_f/movi_f-train.tfrecord-00000-of-00001", *records)
    held = [drift((3.0, 1.0), name=str(number)) for number in range(100, 102)]
    write(tmp_path / "movi_f/movi_f-validation.tfrecord-00000-of-00001", *held)
    return save(tmp_path / "tapvid_davis.pkl", entries(2, n=2, t=3))


@pytest.mark.slow
def test_all_commands_of_the_tutorial_run_one_after_the_other(published, tmp_path, capsys):
    done = set()
    for words in tutorial(published):
        name = " ".join(words[:2])
        done.add(name)
        expanded = []
        for word in words:
            expanded += sorted(map(str, Path().glob(word))) if "*" in word else [word]
        runs = sorted(map(str, Path().glob("runs/*-[ual]*")))
        runs = [run for run in runs if (Path(run) / "run.json").exists()]
        if name == "eval score":
            for run in runs:
                main(["eval", "score", run])
        elif name == "eval report":
            main(["eval", "report", *runs, "--out", "report"])
        else:
            small = ["--videos", "1", "--max-tracks", "1", "--frames", "2"] if name == "eval ablate" else []
            main([*expanded, *FEW.get(name, []), *small])
    assert done >= {"data cache", "train lpa", "eval predict", "eval score", "eval report", "eval sweep", "eval ablate"}
    assert "LPA-CWM" in (tmp_path / "report/index.html").read_text()
    assert (tmp_path / "audit.png").exists()
    assert (tmp_path / "runs/ablation/report/index.html").exists()


@pytest.mark.slow
def test_the_one_command_finds_the_same_data(published, tmp_path, capsys):
    words = "paper --data . --world opt-cwm --score-model adm --out paper --videos 1 --max-tracks 1 --frames 2"
    # Without RAFT, whose file the fixture replaces as well.
    rows = ["--methods", "uniform", "apa", "lpa"]
    main([*words.split(), *rows, "--steps", "1", "--sweep-queries", "2", "--only", "table-1", "figure-6"])
    assert "Table 1" in (tmp_path / "paper/index.md").read_text()
    assert (tmp_path / "paper/training/full/lpa.safetensors").exists()
