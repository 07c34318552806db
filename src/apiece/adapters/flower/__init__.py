"""Training across clients with Flower: each client and each record at its own budget.

federation = plan_federation([1.0, 4.0], 1e-5, counts, rounds=20, ...)
client = FederatedClient(model, loss, (x, y), levels, federation)   # at each client
strategy = FederatedStrategy(parameters, federation)  # at the server
"""

from apiece.adapters.federation import Federation, charge, plan_federation
from apiece.adapters.flower.clients import FederatedClient
from apiece.adapters.flower.strategy import FederatedStrategy

__all__ = ["FederatedClient", "FederatedStrategy", "Federation", "charge", "plan_federation"]
