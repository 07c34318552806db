"""The ways of clipping a batch: by book-keeping, by torch.func, one record at a time."""
