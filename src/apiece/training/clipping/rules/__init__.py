"""What each layer's parameters give each record: one rule a kind of layer."""
