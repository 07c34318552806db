"""Public schemas of small tables that tests of several packages write."""

AGE_AND_ANSWER = """
[columns.age]
kind = "numeric"
lower = 0
upper = 100
[columns.answer]
kind = "categorical"
values = ["no", "yes"]
"""
X_AND_Y = """
[columns.x]
kind = "numeric"
lower = 0
upper = 1
[columns.y]
kind = "categorical"
values = ["a", "b"]
"""
