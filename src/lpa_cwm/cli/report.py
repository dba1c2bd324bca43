"""`lpa-cwm report`: scored runs in, one page and its tables out."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional


@dataclass(frozen=True)
class Report:
    """Compare scored runs: one self-contained page, and every table as CSV, Markdown and LaTeX."""

    runs: Annotated[tuple[Path, ...], Positional]
    """Run folders that `lpa-cwm score` has scored, those of one data set being compared; folders of sweeps too."""
    out: Path = Path("report")
    """Folder to write to."""
    json: bool = False
    """Print where the page is as JSON."""

    def run(self) -> None:
        """Read scores, write the report, print where it is."""
        from lpa_cwm.errors import InputError
        from lpa_cwm.report.write import write_report

        if not self.runs:
            raise InputError("No run was given; name one or more scored run folders.")
        page = write_report(list(self.runs), self.out)
        print(json.dumps({"page": str(page), "tables": str(self.out / "tables")}) if self.json else page)
