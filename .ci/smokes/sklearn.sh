# apiece[sklearn]: an estimator, fitted, and in a grid search.
python - <<'PY'
import numpy as np
from sklearn.base import clone

from apiece.sklearn import Numeric, PrivateClassifier

x = np.linspace(-1, 1, 200)[:, None]
model = PrivateClassifier(classes=[False, True], columns=Numeric(-1, 1), steps=5)
clone(model).fit(x, x[:, 0] > 0, epsilon=1.0, delta=1e-3).report()
PY
