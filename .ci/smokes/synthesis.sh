# apiece[synthesis]: a model of noisy marginals, fitted by mbi.
python - <<'PY'
import numpy as np

from apiece.synthesis.fitting import fit_draft, fit_model, measure_loss
from apiece.synthesis.marginals import Measurement

sizes = (2, 3)
measured = [Measurement((0, 1), np.arange(6) * 100.0, 5.0), Measurement((0,), np.array([300.0, 1200.0]), 5.0)]
draft = fit_draft(sizes, measured, {}, None)
assert measure_loss(fit_model(draft, measured), measured) < 1.0
PY
