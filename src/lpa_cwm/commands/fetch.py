"""`lpa-cwm fetch`: bring files that others publish into the cache."""

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import Positional

Name = Literal["raft", "opt-cwm", "adm"]


@dataclass(frozen=True)
class Fetch:
    """Download published weights, check their hashes and keep them; nothing is ever fetched without being asked."""

    names: Annotated[tuple[Name, ...], Positional] = ()
    """What to bring; without a name, what there is to bring is listed."""

    def run(self) -> None:
        """Fetch one after the other and print where the files are."""
        from lpa_cwm.data.fetch import PARCELS

        if not self.names:
            print(
                "\n".join(f"{parcel.name:8}  {parcel.what}. Licence: {parcel.licence}." for parcel in PARCELS.values())
            )
        for name in self.names:
            for path in PARCELS[name].fetch():
                print(path)
