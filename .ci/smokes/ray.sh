# apiece[ray]: shadow models of a run, trained as Ray's tasks.
bash -eu "$CLONE/.ci/smokes/train.sh"
python - <<'PY'
from apiece.adapters import cluster

print(dict(cluster(cpus=1)(lambda block: {"squares": block**2}, range(3))))
PY
python -m apiece audit lira run --models 2 --out shadows --cluster local
