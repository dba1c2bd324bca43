"""World models: each has `describe`, `observe`, `imagine` and `intervene` (see `protocols.WorldModel`)."""
