# apiece[networks]: a small network of transformers, with adapters, takes a private step.
python -c "import torchvision" 2> /dev/null \
    || { echo "torchvision here is for another build of PyTorch"; exit 77; }
python - <<'PY'
import peft, timm, torch, torchvision, transformers
from torch.nn.functional import cross_entropy

from apiece import clip_and_sum

small = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2}
sizes = {"intermediate_size": 9, "vocab_size": 50, "max_position_embeddings": 9}
model = transformers.BertForSequenceClassification(transformers.BertConfig(**small, **sizes))
model = peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", r=2))
inputs, labels = {"input_ids": torch.randint(1, 50, (4, 5))}, torch.tensor([0, 1, 0, 1])
loss = lambda outputs, targets: cross_entropy(outputs.logits, targets, reduction="none")
print(len(clip_and_sum(model, loss, inputs, labels, torch.ones(4)).gradients))
PY
