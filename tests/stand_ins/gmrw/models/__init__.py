"""Stand-in for GMRW's package of models."""

from models.gmrw import GMRW as GMRW
