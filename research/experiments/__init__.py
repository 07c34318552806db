"""Experiments, one file a table or figure, and what several of them share."""
