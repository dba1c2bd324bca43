"""The command line: parse, run one verb, and tell by the exit code how it went."""

import os
import sys

from lpa_cwm.cli import parse
from lpa_cwm.errors import InputError

FAILED, BAD_INPUT, INTERRUPTED, NO_READER = 1, 2, 130, 141
"""Exit codes beside 0; the parser itself ends with 2, an error that nobody foresaw with 1 and a traceback."""


def main(arguments: list[str] | None = None) -> None:
    """Run one verb; what can be foreseen to go wrong is said in one sentence on stderr."""
    try:
        parse(arguments).run()
        sys.stdout.flush()
    except InputError as error:
        stop(BAD_INPUT, str(error))
    except KeyboardInterrupt:
        stop(INTERRUPTED, "stopped; run the same command again to go on.")
    except BrokenPipeError:
        # As when piped into `head`: Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(NO_READER)
    except OSError as error:
        stop(FAILED, f"the system says: {error}.")


def stop(code: int, sentence: str) -> None:
    """Say why, and end."""
    print(f"lpa-cwm: {sentence}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
