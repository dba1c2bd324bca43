"""Several methods on one data set: predict, score and report."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from lpa_cwm import registry
from lpa_cwm.evaluation.manifest import Manifest, manifest_of
from lpa_cwm.evaluation.methods import Method, make_tracker
from lpa_cwm.evaluation.predict import PredictJob, lacking, predict
from lpa_cwm.evaluation.run import Run, software
from lpa_cwm.evaluation.score import ScoredRun, score, write_scores
from lpa_cwm.protocols import Dataset
from lpa_cwm.sharding import Executor, Shard, in_this_process


def predict_methods(
    dataset: Dataset,
    manifest: Manifest,
    methods: Mapping[Path, Method],
    executor: Executor = in_this_process,
    shard: Shard | None = None,
) -> tuple[int, int]:
    """Write the runs of several methods, each into its folder; candidates are shared where that is possible."""
    made = software()
    path = str(dataset.path.resolve())
    worlds = {one.world: registry.load_world(one.world) for one in methods.values() if one.ours}
    runs = {}
    for folder, method in methods.items():
        identity = method.identity(worlds.get(method.world) if method.ours else None)
        runs[str(folder)] = folder, Run(method.name, identity, path, dataset.selection, manifest, made)
    named = [(str(folder), method) for folder, method in methods.items()]
    return predict(PredictJob(dataset, partial(make_tracker, named)), runs, executor, shard)


def compare(
    dataset: Dataset, methods: Mapping[Path, Method], executor: Executor = in_this_process, shard: Shard | None = None
) -> int:
    """Predict with several methods and score them; the number of videos that other shards still have to track."""
    manifest = manifest_of(dataset)
    predict_methods(dataset, manifest, methods, executor, shard)
    left = len(lacking(dataset.names, list(methods)))
    if not left:
        for folder in methods:
            run = ScoredRun.of(folder, dataset, manifest)
            write_scores(folder, score(run))
    return left
