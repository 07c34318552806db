# apiece[backbone]: features of a network trained on public photographs, and a private head on them.
python - <<'PY'
import numpy as np
import torch

from apiece import Budgets
from apiece.recipes import RECIPES, outputs_of

recipe = RECIPES["public-backbone"]
pixels = np.zeros((60, 3, 32, 32), np.uint8)
pixels[30:, :, ::2] = 255
features = recipe.features(pixels)
plan = recipe.plan(Budgets(np.repeat([2.0, 8.0], 30), 1e-3))
head = recipe.train(plan, features, torch.arange(2).repeat_interleave(30), classes=2, seed=0)
assert outputs_of(head, features).shape == (60, 2)
PY
