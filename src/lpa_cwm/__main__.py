"""`python -m lpa_cwm` is `lpa-cwm`."""

from lpa_cwm.cli.main import main

if __name__ == "__main__":
    main()
