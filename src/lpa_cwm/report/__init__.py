"""Tables, figures and one page from the scores of one or more runs."""
