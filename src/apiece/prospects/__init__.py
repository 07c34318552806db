"""What individual budgets are likely to bring, as `apiece plan --compare` tells it before training.

`gains.json` beside this file is a result of the experiment `when-it-pays`; nothing that is trained,
asked or accounted for reads it.
"""
