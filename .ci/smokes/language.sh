# apiece[language]: adapters in the last block of a small random model, for authors with budgets.
python - <<'PY'
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from apiece import Budgets
from apiece.recipes import LanguageRecipe

config = LlamaConfig(
    vocab_size=50,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    tie_word_embeddings=True,
)
model = LlamaForCausalLM(config).eval().requires_grad_(False)
recipe = LanguageRecipe(layers=1, length=8, vocabulary=40, steps=3)
tokens = torch.randint(50, (60, 8))
states = recipe.states(model, tokens)
plan = recipe.plan(Budgets(np.repeat([2.0, 8.0], 30), 1e-3))
adapted = recipe.adapt(model, seed=0)
recipe.train(plan, adapted, states, tokens, plan.ids, seed=0)
assert recipe.losses(adapted, states, tokens).shape == (60,)
adapted.save_pretrained("adapters")
PY
test -s adapters/adapter_model.safetensors
