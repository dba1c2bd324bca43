"""The command line: parse, run one verb, and tell by the exit code how it went."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from lpa_cwm.cli import parse
from lpa_cwm.errors import InputError

FAILED, BAD_INPUT, INTERRUPTED, NO_READER, TERMINATED = 1, 2, 130, 141, 143
"""Exit codes beside 0; the parser itself ends with 2, an error that nobody foresaw with 1 and a traceback."""


class Terminated(KeyboardInterrupt):
    """SIGTERM; whoever cleans up after an interrupt cleans up after this, too."""


@contextmanager
def cleanup_on_sigterm() -> Iterator[None]:
    """Let SIGTERM leave all `with` blocks, as SIGINT does, so that no temporary file stays."""
    if threading.current_thread() is not threading.main_thread():
        # Python sets signal handlers in the main thread only.
        yield
        return
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def terminate(number: int, frame: FrameType | None) -> NoReturn:
    """Answer SIGTERM once: `timeout` sends it twice, and the second must not interrupt the cleaning up."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated


def main(arguments: list[str] | None = None) -> None:
    """Run one verb; what can be foreseen to go wrong is said in one sentence on stderr."""
    try:
        with cleanup_on_sigterm():
            parse(arguments).run()
            sys.stdout.flush()
    except InputError as error:
        stop(BAD_INPUT, str(error))
    except Terminated:
        stop(TERMINATED, "terminated; run the same command again to go on.")
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
