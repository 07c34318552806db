"""Figures and the self-contained HTML page; sees results, never models."""
