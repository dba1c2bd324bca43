"""`python -m lpa_cwm` is `lpa-cwm`."""

import sys


def main() -> None:
    """Run one command; the version is printed without importing any."""
    if sys.argv[1:] == ["--version"]:
        from lpa_cwm import __version__

        print(f"lpa-cwm {__version__}")
        return
    from lpa_cwm.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
