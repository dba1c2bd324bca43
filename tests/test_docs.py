"""What the documentation says is true: its code runs, its commands parse, its links, names and figures exist."""

import ast
import contextlib
import csv
import dataclasses
import doctest
import importlib
import inspect
import io
import itertools
import pickle
import re
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from lpa_cwm.cli.main import COMMANDS, GROUPS, parse
from lpa_cwm.io.video import write
from lpa_cwm.types import Grid, Tracks
from lpa_cwm.worlds.toy import ToyMotion, toy_clip

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/lpa_cwm"
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")), *DOCS]
FENCE = re.compile(r"(<!-- not run: .+? -->\n)?^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def named(path):
    return str(path.relative_to(ROOT))


def blocks(path, *languages):
    """Fenced blocks of some languages, without those marked with a reason not to be run."""
    found = FENCE.findall(path.read_text())
    return [code for why, language, code in found if language in languages and not why]


# --- Python -----------------------------------------------------------------------------------------------------------


def tracks_of_a_video():
    """Arrays as the measures want them."""
    truth = 128 + np.cumsum(np.full((3, 6, 2), 2.0), axis=1)
    seen = np.ones((3, 6), bool)
    seen[0, 3] = False
    return {
        "xy": truth + 0.7,
        "visible": seen,
        "truth_xy": truth,
        "truth_visible": seen,
        "query_frame": np.zeros(3, int),
    }


def tensors_of_a_video():
    return {name: torch.as_tensor(value) for name, value in tracks_of_a_video().items()}


def small_clip():
    return {"clip": toy_clip(ToyMotion(shift=(0.02, 0.0)), 2)}


def copying_predictor():
    """For the page on own world models: a predictor that copies the source, and a perturbation."""

    def predict(source, target, hidden):
        patches = hidden.view(-1, 32, 32).repeat_interleave(8, 1).repeat_interleave(8, 2)
        return torch.where(patches[:, None], source, target)

    def perturb(source, point):
        changed = source.clone()
        changed[:, int(point[1]), int(point[0])] += 0.5
        return changed

    return {"predict": predict, "perturb": perturb, **small_clip()}


def still_flow():
    clip = small_clip()["clip"]
    return {
        "clip": clip,
        "queries": Grid(2).on(clip.hw),
        "my_flow": lambda one, two: torch.zeros_like(one[:, :2]).float(),
    }


GIVEN = {
    "docs/metrics.md": tracks_of_a_video,
    "docs/baselines.md": still_flow,
    "docs/tutorials/own_world_model.md": copying_predictor,
    "docs/tutorials/score_my_tracker.md": tensors_of_a_video,
}
"""What a page takes for granted."""


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A folder with the files that pages mention."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "clip.mp4", toy_clip(ToyMotion(shift=(0.02, 0.0)), 2, (64, 64)).frames, 12.0)
    (tmp_path / "run").mkdir()
    video = np.zeros((2, 16, 16, 3), np.uint8)
    entry = {"video": video, "points": np.full((1, 2, 2), 0.5, np.float32), "occluded": np.zeros((1, 2), bool)}
    (tmp_path / "data.pkl").write_bytes(pickle.dumps({"one": entry}))
    return tmp_path


@pytest.mark.parametrize("path", [page for page in PAGES if blocks(page, "python")], ids=named)
def test_python_of_a_page_runs_from_top_to_bottom(path, desk):
    if "torchmetrics" in "".join(blocks(path, "python")):
        pytest.importorskip("torchmetrics", reason="the extra `torchmetrics` is not installed")
    names = GIVEN.get(named(path), dict)()
    given = dict(names)
    for code in blocks(path, "python"):
        # What the README says is run as it is; elsewhere one point instead of sixty-four says the same in less time.
        exact = code if path.name == "README.md" else code.replace("lc.grid(8)", "lc.grid(1)")
        exec(compile(exact, named(path), "exec"), names)
    made = {name: value for name, value in names.items() if name != "__builtins__" and given.get(name) is not value}
    assert made, f"{named(path)} has code that makes nothing"
    for name, tracks in made.items():
        if isinstance(tracks, Tracks):
            known = tracks.xy[tracks.visible]
            assert len(known), f"{named(path)}: no point of `{name}` is visible anywhere"
            assert known.isfinite().all(), f"{named(path)}: `{name}` has visible points without a place"


def documented_modules():
    for path in sorted(SOURCE.rglob("*.py")):
        if ">>>" not in path.read_text():
            continue
        tree = ast.parse(path.read_text())
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
        texts = [ast.get_docstring(node) or "" for node in nodes]
        if any(">>>" in text for text in texts):
            yield ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")


API = re.findall(
    r"^::: (\S+)(?:\n    options:\n      members: \[(.*?)\])?", (ROOT / "docs/api.md").read_text(), re.MULTILINE
)
WITHOUT_EXAMPLE = {
    "lpa_cwm.io.visualization.save_rerun": "needs an optional package",
    "lpa_cwm.estimates.FrameEstimate": "made by trackers",
    "lpa_cwm.tracker.TrackedClip": "made by `track_clip`",
    "lpa_cwm.explain.Explanation": "made by `explain`",
    "lpa_cwm.types.Pair": "made by trackers",
    "lpa_cwm.types.Candidates": "made by trackers",
    "lpa_cwm.types.Judgement": "the example is of `Judgement.of`",
    "lpa_cwm.protocols.WorldModel": "tutorial",
    "lpa_cwm.protocols.Adjudicator": "tutorial",
    "lpa_cwm.protocols.ScoreModel": "tutorial",
    "lpa_cwm.protocols.Dataset": "tutorial",
    "lpa_cwm.worlds.learned.world.LearnedWorld": "loaded by `load`",
}


def undescribed(function):
    """Parameters of a function that its docstring does not describe."""
    text = inspect.getdoc(function) or ""
    names = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]
    return [name for name in names if not re.search(rf"^    {name}: \S", text, re.MULTILINE)]


@pytest.mark.parametrize(("full", "members"), API, ids=[name for name, _ in API])
def test_the_api_page_describes_every_parameter(full, members):
    if "torchmetrics" in full:
        pytest.importorskip("torchmetrics", reason="the extra `torchmetrics` is not installed")
    module, _, name = full.rpartition(".")
    thing = getattr(importlib.import_module(module), name)
    assert ">>>" in (inspect.getdoc(thing) or "") or full in WITHOUT_EXAMPLE
    if inspect.isfunction(thing):
        assert undescribed(thing) == []
        return
    shown = [one.strip() for one in members.split(",")] if members else [one for one in vars(thing) if one[0] != "_"]
    for one in shown:
        value = inspect.getattr_static(thing, one, None)
        value = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if inspect.isfunction(value):
            assert undescribed(value) == [], one
    if dataclasses.is_dataclass(thing):
        body = next(
            node for node in ast.walk(ast.parse(inspect.getsource(thing))) if isinstance(node, ast.ClassDef)
        ).body
        fields = [
            (node.target.id, after) for node, after in itertools.pairwise(body) if isinstance(node, ast.AnnAssign)
        ]
        bare = [field for field, after in fields if not isinstance(after, ast.Expr)]
        assert [field for field in bare if not members or field in shown] == []


@pytest.mark.parametrize("module", [*documented_modules()])
def test_docstrings_show_what_happens(module):
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0


def test_the_docstring_of_torchmetrics_runs():
    pytest.importorskip("torchmetrics", reason="the extra `torchmetrics` is not installed")
    text = ast.get_docstring(ast.parse((SOURCE / "torchmetrics.py").read_text()))
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    names = tensors_of_a_video()
    exec(code, names)
    assert 0 <= names["metrics"].compute()["dca_avg"] <= 1


# --- Commands ---------------------------------------------------------------------------------------------------------


def commands(text):
    """Every use of the program in some shell lines, in words; comments, variables and pipes are taken off."""
    for line in text.splitlines():
        for part in re.split(r"[;|&()]|\$\(|\bdo\b", line.split(" #")[0]):
            words = re.sub(r"\s>.*", "", part.strip().strip('"'))
            words = words.removeprefix("RAY_ADDRESS=auto ").removeprefix("$BIN/")
            if words.startswith("lpa-cwm "):
                # A variable that holds options stands for none, any other for a word.
                yield shlex.split(re.sub(r"\$[\w/]+", "word", words.replace("$part", "")))[1:]


SHELL = [(page, words) for page in PAGES for code in blocks(page, "sh", "") for words in commands(code)]


@pytest.mark.parametrize(("page", "words"), SHELL, ids=lambda part: named(part) if isinstance(part, Path) else part[0])
def test_commands_of_shell_blocks_parse(page, words, capsys):
    command = None
    with contextlib.suppress(SystemExit):
        command = parse(words)
    assert command is not None, f"{named(page)}: lpa-cwm {shlex.join(words)}\n{capsys.readouterr().err}"


def options(words):
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        parse([*words, "--help"])
    return set(re.findall(r"--[a-z][a-z-]*", shown.getvalue()))


def test_commands_in_the_text_have_known_verbs_and_options():
    known = {name: options(name.split()) for name in COMMANDS}
    for page in PAGES:
        text = FENCE.sub("", page.read_text())
        for words in re.findall(r"`lpa-cwm ([a-z][^`]*)`", text):
            name = next((name for name in known if f"{words} ".startswith(f"{name} ")), None)
            assert name or words in GROUPS, f"{named(page)}: there is no lpa-cwm {words}"
            for option in re.findall(r"--[a-z][a-z-]*", words):
                assert option in known[name], f"{named(page)}: lpa-cwm {name} has no {option}"


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_of_help_parse(name):
    for words in commands(COMMANDS[name].EXAMPLE):
        assert isinstance(parse(words), COMMANDS[name])


def test_exit_codes_are_those_of_the_program():
    from lpa_cwm.cli import main as cli

    listed = set(map(int, re.findall(r"^\| (\d+) \|", (ROOT / "docs/commands.md").read_text(), re.MULTILINE)))
    assert listed == {0, cli.FAILED, cli.BAD_INPUT, cli.INTERRUPTED, cli.NO_READER, cli.TERMINATED}


# --- Links, names, figures --------------------------------------------------------------------------------------------


def anchors(path):
    """Headings as the site and most viewers name them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text()), re.MULTILINE)
    return {re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_links_lead_somewhere(path):
    text = FENCE.sub("", path.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        file, _, anchor = target.partition("#")
        place = (path.parent / file).resolve() if file else path
        assert place.exists(), f"{named(path)} links to {target}"
        if anchor:
            assert anchor in anchors(place), f"{named(path)} links to {target}"


def table(path, first):
    """Rows of the table whose header begins with a cell."""
    lines = path.read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {first} |"))
    body = itertools.takewhile(lambda line: line.startswith("|"), lines[start + 2 :])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body]


GLOSSARY = table(ROOT / "docs/concepts.md", "paper")


@pytest.mark.parametrize(("name", "file", "test"), [row[2:] for row in GLOSSARY], ids=lambda cell: cell[:40])
def test_the_glossary_names_what_is_there(name, file, test):
    source = (SOURCE / file.strip("`")).read_text()
    for one in re.findall(r"`([\w.]+)`", name.split(";")[0]):
        assert re.search(rf"\b{one.split('.')[-1]}", source), f"{file} has no {one}"
    tests, _, function = test.strip("`").partition("::")
    assert f"def {function}(" in (ROOT / "tests" / tests).read_text()


def test_the_papers_figures_are_those_of_the_report():
    metrics = ["coverage", "complete", "dca_avg", "cts_4", "vis_ba", "of1", "lcc", "aj", "delta_avg", "ad", "md", "oa"]
    with (SOURCE / "report/paper.csv").open() as file:
        published = [row for row in csv.DictReader(file) if row["table"] == "main"]
    known = {(row["dataset"], row["method"], row["metric"]): row["value"] for row in published}
    rows = table(ROOT / "docs/tutorials/paper_experiments.md", "data set | method")
    shown = {(row[0], row[1], metric): value for row in rows for metric, value in zip(metrics, row[2:], strict=True)}
    assert shown == known


def test_every_dependency_has_its_license_stated_and_an_upper_bound():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    names = {re.split("[<>=]", one)[0] for one in declared}
    rows = [line.split("|") for line in (ROOT / "docs/licenses.md").read_text().splitlines() if line.startswith("| ")]
    stated = {word.split()[0] for row in rows for word in row[1:3] if word.split()}
    assert names <= stated, names - stated
    assert not [one for one in declared if "<" not in one]


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text().split("nav:")[-1]
    listed = set(re.findall(r": ([\w/]+\.md)$", navigation, re.MULTILINE))
    # Tables of the paper are linked by their own index.
    pages = {path for path in DOCS if not path.name.startswith(("table_", "figure_"))}
    assert listed == {str(path.relative_to(ROOT / "docs")) for path in pages}


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    build = pytest.importorskip("mkdocs.commands.build", reason="the group `docs` is not installed")
    from mkdocs.config import load_config

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        build.build(load_config(strict=True, site_dir=str(tmp_path)))
    assert "--reevaluation" in (tmp_path / "commands/index.html").read_text()
