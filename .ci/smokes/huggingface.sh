# apiece[huggingface]: a run inside Hugging Face's loop.
export PYTHONPATH="$CLONE/.ci/smokes"
python -W ignore - <<'PY'
import torch
import transformers
from trainer import PLAN

from apiece.adapters.huggingface import PrivateTrainer

small = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2}
sizes = {"intermediate_size": 9, "vocab_size": 50, "max_position_embeddings": 9}
model = transformers.BertForSequenceClassification(transformers.BertConfig(**small, **sizes))
texts = [{"input_ids": torch.randint(1, 50, (5,)), "labels": k % 2} for k in range(40)]
args = transformers.TrainingArguments("out", use_cpu=True, report_to=[], disable_tqdm=True)
PrivateTrainer(model, args, plan=PLAN, train_dataset=texts).train()
PY
