"""A small data set, in memory and by position, that several tests read."""

import torch
from torch.utils.data import Dataset

N = 30
INPUTS = torch.randn(N, 4, generator=torch.Generator().manual_seed(5))
TARGETS = (INPUTS[:, 0] > 0).long()


class Items(Dataset):
    """Records by position; what is read is counted."""

    def __init__(self, inputs, *, transform=None):
        self.inputs, self.transform, self.read = inputs, transform, set()

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, i):
        self.read.add(i)
        x = self.inputs[i]
        return (self.transform(x) if self.transform else x), int(x[0] > 0)


def changed(record):
    inputs = INPUTS.clone()
    inputs[record, 2] += 1e-6
    return inputs
