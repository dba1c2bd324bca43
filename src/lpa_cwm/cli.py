"""The command line: parse, call one function, print one path."""

import sys

import tyro

from lpa_cwm.commands import COMMANDS
from lpa_cwm.errors import InputError


def main(arguments: list[str] | None = None) -> None:
    """Run one verb; bad input ends in one sentence and exit code 2."""
    command = tyro.extras.subcommand_cli_from_dict(dict(COMMANDS), prog="lpa-cwm", description=__doc__, args=arguments)
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
