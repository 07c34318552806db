"""apiece: individualized differential privacy, where every record has its own budget."""

__version__ = "0.1.0"
