"""Tables, figures and pages from scores."""
