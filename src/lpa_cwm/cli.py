"""The command line: parse, call one function, print one path."""

import sys
from typing import Annotated

import tyro

from lpa_cwm.commands import COMMANDS
from lpa_cwm.errors import InputError


def main(arguments: list[str] | None = None) -> None:
    """Run one verb; bad input ends in one sentence and exit code 2."""
    verbs = [Annotated[kind, tyro.conf.subcommand(name)] for name, kind in COMMANDS.items()]
    union = verbs[0]
    for verb in verbs[1:]:
        union |= verb
    command = tyro.cli(union, prog="lpa-cwm", description=__doc__, args=arguments)  # type: ignore[arg-type]
    try:
        command.run()
    except InputError as error:
        print(f"lpa-cwm: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("lpa-cwm: stopped; run the same command again to go on.", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
