"""`lpa-cwm train`: the table of what can be trained; each entry is a verb of its own."""

from dataclasses import dataclass
from typing import Annotated, Any, Union

import tyro

from lpa_cwm.commands.train_score import TrainScore

SUBJECTS: dict[str, type] = {
    "score": TrainScore,
}

_verbs = [Annotated[kind, tyro.conf.subcommand(name, prefix_name=False)] for name, kind in SUBJECTS.items()]
# tyro makes subcommands of a union only, and one member is none: the hidden second keeps a table of one working.
_Subject: Any = Annotated[Union[*_verbs, Annotated[None, tyro.conf.Suppress]], tyro.conf.arg(name="")]


@dataclass(frozen=True)
class Train:
    """Train one of the networks that ship."""

    subject: _Subject

    def run(self) -> None:
        """Train it."""
        self.subject.run()
