"""`lpa-cwm methods`: every method by name, and whether it can run here."""

import json
from dataclasses import dataclass
from typing import TypedDict


class Entry(TypedDict):
    """One method of the list."""

    name: str
    what: str
    license: str
    source: str
    missing: str | None


OURS = {
    "uniform": "The world model's candidate responses, all believed alike.",
    "apa": "Analytic adjudication: candidates weighed by a score field, appearance against motion.",
    "lpa": "Learned adjudication: candidates weighed by a small set transformer.",
}


@dataclass(frozen=True)
class Methods:
    """List every method, ours and others': what it is, its license, and what is missing where it cannot run."""

    json: bool = False
    """Print JSON instead of text."""

    def run(self) -> None:
        """Print the list."""
        entries = listed()
        if self.json:
            print(json.dumps(entries, indent=2))
            return
        width = max(len(entry["name"]) for entry in entries)
        for entry in entries:
            state = "Runs here." if entry["missing"] is None else f"Missing: {entry['missing']}"
            print(f"{entry['name']:{width}}  {entry['what']}")
            print(f"{'':{width}}  License: {entry['license']}. From: {entry['source']}.")
            print(f"{'':{width}}  {state}")


def listed() -> list[Entry]:
    """Our methods first, then the rivals."""
    from lpa_cwm.baselines.registry import BASELINES

    ours = [
        Entry(name=name, what=what, license="Apache-2.0", source="built in", missing=missing(name))
        for name, what in OURS.items()
    ]
    rivals = [
        Entry(name=rival.name, what=rival.what, license=rival.license, source=rival.obtain, missing=rival.missing())
        for rival in BASELINES.values()
    ]
    return [*ours, *rivals]


def missing(name: str) -> str | None:
    """What one of our methods lacks with the world model and weights of the default."""
    from lpa_cwm import registry
    from lpa_cwm.errors import InputError

    try:
        registry.load(name)
    except InputError as error:
        return str(error)
    return None
