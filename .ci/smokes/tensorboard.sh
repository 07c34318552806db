# apiece[tensorboard]: the steps of a run are written, and TensorBoard reads them.
export PYTHONPATH="$CLONE/.ci/smokes"
python -c "
from trainer import PLAN, trainer
from apiece.training import TensorBoard
trainer(callbacks=[TensorBoard('events', PLAN, every=1)]).fit()
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
print(EventAccumulator('events').Reload().Tags()['scalars'])
"
