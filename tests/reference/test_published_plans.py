"""Published parameters, reproduced with the accounting of their time, and what PLD saves.

Values: Boenisch et al. 2023 Tables 5 and 6 with corrections (δ = 1e-5, budgets 1/2/3). The
MNIST Scale row that is printed there does not fit its own settings; 3.425/1.920/1.425 does.
"""

import pytest

from apiece import accounting
from apiece.assignment import Sample, Scale, assign
from apiece.budgets import Budgets

NIU = [("strict", 1.0, 0.54), ("medium", 2.0, 0.37), ("weak", 3.0, 0.09)]
SETTINGS = {
    "svhn": (73257, 1024, 2146),
    "cifar-10": (50000, 1024, 1465),
    "mnist": (60000, 512, 9375),
}
SCALE = {
    "svhn": (2.747, 1.589, 1.214),
    "cifar-10": (3.294, 1.868, 1.399),
    "mnist": (3.425, 1.920, 1.425),
}
SAMPLE = {
    "cifar-10": (2.300, (0.0138, 0.0260, 0.0374)),
    "mnist": (2.376, (0.0057, 0.0108, 0.0155)),
}


def budgets_of(name: str) -> tuple[Budgets, dict[str, float]]:
    records, batch, steps = SETTINGS[name]
    settings = {"expected_batch_size": batch, "steps": steps, "clip_norm": 1.0}
    return Budgets.from_groups(NIU, records, 1e-5), settings


@pytest.mark.parametrize("name", SCALE)
def test_scale_noise_multipliers(name: str) -> None:
    budgets, settings = budgets_of(name)
    plan = assign(budgets, Scale(), method="rdp", **settings)  # type: ignore[arg-type]
    found = [group.noise_multiplier for group in plan.groups]
    assert found == pytest.approx(SCALE[name], rel=5e-3)


@pytest.mark.parametrize("name", SAMPLE)
def test_sample_noise_and_rates(name: str) -> None:
    budgets, settings = budgets_of(name)
    plan = assign(budgets, Sample(), method="rdp", **settings)  # type: ignore[arg-type]
    noise, rates = SAMPLE[name]
    assert plan.noise_stddev == pytest.approx(noise, rel=5e-3)
    # at the printed noise, to the four decimals that are printed
    found = accounting.sampling_probabilities(
        epsilon=[1.0, 2.0, 3.0],
        delta=1e-5,
        noise_multiplier=noise,
        steps=plan.steps,
        method="rdp",
    )
    assert found == pytest.approx(rates, rel=5e-3, abs=6e-5)


@pytest.mark.parametrize("name", ["svhn", "cifar-10"])
def test_pld_needs_six_to_nine_percent_less_noise(name: str) -> None:
    budgets, settings = budgets_of(name)
    plan = assign(budgets, Scale(), **settings)  # type: ignore[arg-type]
    found = [group.noise_multiplier for group in plan.groups]
    for tight, loose in zip(found, SCALE[name], strict=True):
        assert 0.049 <= 1 - tight / loose <= 0.095  # SVHN at epsilon 3: 4.998 %
