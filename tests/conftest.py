"""Settings of the test suite."""

from hypothesis import settings

# Deadlines measure the machine, not the code.
settings.register_profile("lpa-cwm", deadline=None)
settings.load_profile("lpa-cwm")
