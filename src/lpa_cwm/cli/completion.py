"""`lpa-cwm completion`: what a shell needs to complete verbs and options."""

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import Positional


@dataclass(frozen=True)
class Completion:
    """Print a script that teaches a shell to complete verbs and options: eval "$(lpa-cwm completion bash)"."""

    shell: Annotated[Literal["bash", "zsh", "fish"], Positional]
    """Shell that reads the script."""

    def run(self) -> None:
        """Let the parser describe itself; it prints, and ends the program with code 0."""
        from lpa_cwm.cli import parse

        parse(["--tyro-print-completion", self.shell])
