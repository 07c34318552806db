"""The report's figures: SVG that stands alone, the same each time, with every strategy in it."""

from dataclasses import replace

from apiece.reporting.figures import accuracy, budgets, influence, learning_curve
from sample_runs import sample_run


def test_they_are_svg_with_every_name_and_the_same_twice() -> None:
    run = sample_run()
    by_strategy = {s.strategy: s.promises for s in run.strategies}
    for draw in (lambda: accuracy(run), lambda: budgets(by_strategy)):
        text = draw()
        assert text is not None
        assert text.startswith("<svg")
        assert text == draw()
        assert 'role="img" aria-label="' in text
        assert "#01020" not in text, "the page's own colours"
        assert "http://www.w3.org" in text.split(">", 1)[0]
        for strategy in run.strategies:
            assert strategy.strategy in text
    for group in run.strategies[0].promises:
        assert group.name in budgets(by_strategy)


def test_without_held_out_people_there_is_no_accuracy() -> None:
    run = sample_run()
    untested = tuple(replace(s, test_accuracy=()) for s in run.strategies)
    assert accuracy(replace(run, strategies=untested)) is None


def test_a_figure_of_one_dot_is_none() -> None:
    run = sample_run()
    one = replace(run, strategies=(replace(run.kept, test_accuracy=(0.8,)),))
    assert accuracy(run)
    assert accuracy(one) is None
    promises = run.kept.promises
    assert budgets({"scale": promises})
    assert budgets({"scale": promises[:1]}) is None
    rows = [(group, 0.5, 0.5, 0.5) for group in run.kept.plan.groups]
    assert influence(rows)
    assert influence(rows[:1]) is None
    assert learning_curve([(1, 0.5)], error=False) is None
