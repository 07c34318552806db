# apiece[ray]: blocks of shadow models, run as Ray's tasks.
python - <<'PY'
from apiece.adapters import cluster


def squares(block: int) -> dict[str, int]:
    return {"square": block**2}


found = dict(cluster(cpus=1)(squares, range(3)))
assert found == {k: {"square": k**2} for k in range(3)}, found
import apiece.audit.stacked_training
PY
