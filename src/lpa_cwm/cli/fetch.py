"""`lpa-cwm fetch`: bring files that others publish into the cache."""

import json
from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import Positional

Name = Literal["raft", "raft-things", "opt-cwm", "adm"]


@dataclass(frozen=True)
class Fetch:
    """Download published weights, check their hashes and keep them; nothing is ever fetched without being asked."""

    names: Annotated[tuple[Name, ...], Positional] = ()
    """What to bring; without a name, what there is to bring is listed."""
    json: bool = False
    """Print JSON instead of text."""

    def run(self) -> None:
        """Fetch one after the other and print where the files are."""
        from lpa_cwm.datasets.download import DOWNLOADS

        if not self.names:
            offered = [{"name": one.name, "what": one.what, "license": one.license} for one in DOWNLOADS.values()]
            lines = [f"{one['name']:8}  {one['what']}. License: {one['license']}." for one in offered]
            print(json.dumps(offered) if self.json else "\n".join(lines))
            return
        paths = [str(path) for name in self.names for path in DOWNLOADS[name].fetch()]
        print(json.dumps({"written": paths}) if self.json else "\n".join(paths))
