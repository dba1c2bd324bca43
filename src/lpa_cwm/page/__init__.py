"""The page of `lpa-cwm demo`: click points, follow them, see why each was believed to be where it is."""
