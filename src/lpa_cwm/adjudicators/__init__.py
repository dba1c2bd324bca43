"""Adjudicators: Uniform, APA and LPA weigh the candidates of a query."""
