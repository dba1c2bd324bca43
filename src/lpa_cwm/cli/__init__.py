"""The table of verbs: name on the command line -> frozen dataclass with `run()`."""

from typing import Protocol, runtime_checkable

import tyro

from lpa_cwm.cli.ablate import Ablate
from lpa_cwm.cli.audit import Audit
from lpa_cwm.cli.cache import Cache
from lpa_cwm.cli.compare import Compare
from lpa_cwm.cli.completion import Completion
from lpa_cwm.cli.convert import Convert
from lpa_cwm.cli.demo import Demo
from lpa_cwm.cli.doctor import Doctor
from lpa_cwm.cli.explain import Explain
from lpa_cwm.cli.fetch import Fetch
from lpa_cwm.cli.methods import Methods
from lpa_cwm.cli.predict import Predict
from lpa_cwm.cli.report import Report
from lpa_cwm.cli.score import Score
from lpa_cwm.cli.simulate import Simulate
from lpa_cwm.cli.sweep import Sweep
from lpa_cwm.cli.track import Track
from lpa_cwm.cli.train import Train


@runtime_checkable
class Command(Protocol):
    """Options as fields, work in `run`."""

    def run(self) -> None: ...


COMMANDS: dict[str, type[Command]] = {
    "track": Track,
    "explain": Explain,
    "demo": Demo,
    "predict": Predict,
    "score": Score,
    "report": Report,
    "compare": Compare,
    "fetch": Fetch,
    "convert": Convert,
    "methods": Methods,
    "cache": Cache,
    "train": Train,
    "audit": Audit,
    "ablate": Ablate,
    "sweep": Sweep,
    "simulate": Simulate,
    "doctor": Doctor,
    "completion": Completion,
}

ABOUT = """Follow points through video by asking a counterfactual world model, and measure any tracker.

Exit codes: 0 done, 1 failed, 2 bad input, 130 interrupted. Results go to stdout, everything else to stderr."""


def parse(arguments: list[str] | None = None) -> Command:
    """The command that the words ask for; `sys.argv` if none are given."""
    return tyro.extras.subcommand_cli_from_dict(dict(COMMANDS), prog="lpa-cwm", description=ABOUT, args=arguments)
