"""The page of `lpa-cwm page`: click points, track them, see why the tracker answered as it did."""
