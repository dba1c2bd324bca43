"""Stand-in for a page writer that inference never uses."""

import dominate
from dominate.tags import *  # noqa: F403

PAGE = dominate.document
