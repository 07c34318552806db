# apiece[flower]: a planned federation, one round of it, and its charge to a ledger.
python - <<'PY'
import numpy as np
import torch
from torch import nn

from apiece.adapters.flower import FederatedClient, FederatedStrategy, charge, plan_federation
from apiece.ledger import Ledger

federation = plan_federation(
    [1.0, 4.0], 1e-5, [20, 20], rounds=2, client_probability=0.5, noise_multiplier=2.0
)
ledger = Ledger.make("people.db", ["a", "b"], 8.0, 1e-5)
assert charge(ledger, "run/silo", ["a", "b"], [0, 1], federation, delta=1e-5).tolist() == ["a", "b"]
model, levels = nn.Linear(3, 1), np.arange(40) % 2
data = torch.randn(40, 3), torch.zeros(40, 1)
client = FederatedClient(model, lambda out, y: (out - y).square()[:, 0], data, levels, federation)
first = [p.detach().numpy() for p in model.parameters()]
sums, examples, _ = client.fit(first, {})
assert examples == 1
FederatedStrategy(first, federation)
PY
