# apiece[mlflow]: the steps of a run are written to a store in a file.
export PYTHONPATH="$CLONE/.ci/smokes"
python -c "
import mlflow
from trainer import PLAN, trainer
from apiece.adapters.mlflow import MLflow
mlflow.set_tracking_uri('sqlite:///mlflow.db')
with mlflow.start_run() as run:
    trainer(callbacks=[MLflow(PLAN, every=1)]).fit()
print(mlflow.get_run(run.info.run_id).data.metrics)
"
