"""Study ``advice``: what it concludes from cells, and what one cell measures."""

from steelyard import studies
from steelyard.studies import Results
from steelyard.studies.advice import SOURCES, _kept, _suite


def cells(order):
    """Two seeds: the sources look as the order says, and each is missed the more the later it stands."""
    found = []
    for seed in range(2):
        for suite, names in SOURCES.items():
            looks = {
                name: {"told": float(order(i)), "near": float(-i), "similarity": 1.0, "expected": "help"}
                for i, name in enumerate(names)
            }
            found.append(({"suite": suite, "run": "look", "seed": seed}, looks))
            found += [({"suite": suite, "run": run, "seed": seed}, {"accuracy": 0.5 + seed}) for run in ("all", "none")]
            for i, name in enumerate(names):
                found.append(({"suite": suite, "run": f"out {name}", "seed": seed}, {"accuracy": 0.5 + seed - i / 10}))
                found.append(({"suite": suite, "run": f"with {name}", "seed": seed}, {"accuracy": 0.5 + seed + i / 10}))
    return Results(found)


def test_rankings_that_agree_and_disagree():
    study = studies.get("advice")()
    agree = study.findings({}, cells(lambda i: i)).tables
    against = study.findings({}, cells(lambda i: -i)).tables
    assert agree[0].rows[0][2:] == ["+1.0000 ± 0.0000"] * 2
    assert against[0].rows[0][2:] == ["-1.0000 ± 0.0000"] * 2
    assert agree[0].rows[1][2:] == ["-1.0000 ± 0.0000"] * 2
    assert agree[0].rows[2][2:] == ["no difference"] * 2
    loops = next(row for row in agree[1].rows if row[1] == "loops")
    assert loops[3:] == ["help 2, unclear 0, harm 0", "+0.2000 ± 0.0000", "+0.2000 ± 0.0000"]


def test_a_cell_trains_with_the_sources_that_its_name_says():
    suite = _suite("digits", 0)
    assert list(_kept(suite, "out large").tasks) == ["digit", "parity", "loops", "shuffled"]
    assert list(_kept(suite, "with loops").tasks) == ["digit", "loops"]
    assert list(_kept(suite, "none").tasks) == ["digit"]
    settings = {"epochs": 1, "steps": 2}
    found = studies.get("advice").measure(settings, suite="digits", run="with loops", seed=0)
    assert 0 <= found["accuracy"] <= 1
