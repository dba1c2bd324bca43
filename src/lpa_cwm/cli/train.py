"""`lpa-cwm train`: the table of what can be trained; each entry is a verb of its own."""

from dataclasses import dataclass
from typing import Annotated, Any, Union

import tyro

from lpa_cwm.cli.train_lpa import TrainLpa
from lpa_cwm.cli.train_score import TrainScore
from lpa_cwm.cli.train_world import TrainWorld

SUBJECTS: dict[str, type] = {
    "lpa": TrainLpa,
    "score": TrainScore,
    "world": TrainWorld,
}

_verbs = [Annotated[kind, tyro.conf.subcommand(name, prefix_name=False)] for name, kind in SUBJECTS.items()]
_Subject: Any = Annotated[Union[*_verbs], tyro.conf.arg(name="")]


@dataclass(frozen=True)
class Train:
    """Train one of the networks that ship."""

    subject: _Subject

    def run(self) -> None:
        """Train it."""
        self.subject.run()
