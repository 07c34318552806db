# apiece: budgets, plans, accounting, contracts and filters need numpy, scipy and click alone.
python - <<'PY'
from importlib import metadata

found = {item.name.lower() for item in metadata.distributions()} - {"pip", "setuptools"}
assert found == {"apiece", "click", "numpy", "scipy"}, found
PY
printf 'id,consent\na,1\nb,3\nc,1\nd,3\n' > people.csv
shape="--delta 1e-5 --batch-size 50 --steps 40"
groups="--groups a:1:.5,b:3:.5 --records 500"
python -m apiece plan $groups $shape --strategy sample --out plan.json
python -m apiece plan $groups $shape --compare
python -m apiece plan --data people.csv --epsilon consent --person id --delta 1e-5 --batch-size 2 \
    --steps 9 --clip-norm 1
python -m apiece plan --from plan.json --gaussian
python -m apiece account --noise-multiplier 1 --sampling-probability .02 --steps 99 --delta 1e-5
python -m apiece explain --plan plan.json --group a
python -m apiece risk --records 500 --batch-size 50 --steps 40 --delta 1e-5 --epsilon 2 \
    --others 4 --shares .5
python -m apiece schema adult --label income > schema.toml
python - <<'PY'
import numpy as np

from apiece import Budgets, GaussianFilter, Scale, assign, contract, privacy_curve

columns = {"who": ["a", "b", "a"], "consent": ["low", "high", "low"]}
levels = {"low": 1.0, "high": 8.0}
budgets = Budgets.from_frame(columns, epsilon="consent", delta=1e-5, person="who", levels=levels)
plan = assign(budgets, Scale(), steps=9, expected_batch_size=1, clip_norm=1.0)
assert plan.verify().ok and contract.check(plan, budgets)
assert privacy_curve(plan.mechanism_for(0)).epsilon(1e-5).upper <= 1
assert GaussianFilter(np.array([1.0, 2.0]), 1e-5).admit([1.0, 1.0], 100.0).all()
PY
# What an extra is needed for says so, in one line and with status 2.
for command in "report plan.json" "ledger verify people.db" "train --data people.csv --label id" \
    "account --noise-multiplier 1 --steps 9 --delta 1e-5 --figure curve.png"; do
    if python -m apiece $command 2> error.txt; then exit 1; else test $? = 2; fi
    grep -q "is not installed (apiece\[[a-z]*\]): pip install" error.txt
    test "$(wc -l < error.txt)" = 1
done
