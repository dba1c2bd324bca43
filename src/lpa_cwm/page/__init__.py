"""The page of `lpa-cwm page`: click points, track them, see how each position was found."""
