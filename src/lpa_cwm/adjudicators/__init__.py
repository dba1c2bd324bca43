"""Adjudicators: Uniform, APA and LPA weight the candidates of a query."""
