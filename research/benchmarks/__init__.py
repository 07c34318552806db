"""Programs that measure time, memory and accuracy, each with one command."""
