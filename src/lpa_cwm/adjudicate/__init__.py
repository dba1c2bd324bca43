"""Who believes which candidate."""
