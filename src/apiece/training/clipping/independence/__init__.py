"""Whether a record's loss and gradient are its own: what is checked, and when."""
