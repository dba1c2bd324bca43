"""World models: whatever answers `observe`, `imagine`, `intervene`."""
