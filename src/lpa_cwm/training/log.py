"""The log of a training: a line of JSON per record, readable while it grows."""

import json
from pathlib import Path

Record = dict[str, int | float | str]


class Log:
    """Appends records; a training that goes on from an earlier step first takes back the later ones."""

    def __init__(self, path: Path, step: int) -> None:
        """Keep the records up to `step`."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [record for record in records(path) if int(record["step"]) <= step]
        path.write_text("".join(json.dumps(record) + "\n" for record in kept))

    def write(self, record: Record) -> None:
        """Add a record, which must have a `step`."""
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")


def records(path: Path) -> list[Record]:
    """All whole records of a log; a line cut short by a crash is left out."""
    if not path.exists():
        return []
    whole = []
    for line in path.read_text().splitlines():
        try:
            whole.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return whole
