"""The study of how close methods come to long HMC, at toy size."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from tests.experiments.made_up_sets import write_uci_sets

import plausible as pl
from plausible.experiments import hmc_truth as study_file
from plausible.experiments import hmc_truth_order as order
from plausible.experiments import hmc_truth_problem as problem_file
from plausible.experiments import registry, tables
from plausible.experiments.hmc_truth_problem import Problem
from plausible.experiments.reproduce import picture_name, run_rows
from plausible.experiments.results import Result, Store
from plausible.report.settings import METHODS as COMPARED
from plausible.tabular.training import even_batch

ROOT = Path(__file__).parents[2]
STUDY = study_file.STUDY
GOOD = {"chains": 8, "draws": 100, "r_hat": 1.01, "r_hat_95": 1.02, "ess_5": 300.0, "share": 0.99}


@pytest.fixture(scope="module")
def made_up_data(tmp_path_factory):
    """Regression sets in the published format under the names that the study asks for, far from having unit scale."""
    return write_uci_sets(tmp_path_factory.mktemp("data"), ["bostonHousing"], 60, lambda x: 50 + 10 * np.tanh(x[:, 0]))


def toys(*names):
    return [STUDY.toy(row) for row in STUDY.chosen(list(names))]


def methods_of(problem):
    """Those of its rows, in their order."""
    return [order.AGAIN, *(method for method in study_file.METHODS if (problem, method) not in study_file.NOT_RUN)]


def fake(name, mixing=None, **scores):
    """A finished row with these scores."""
    (row,) = STUDY.chosen([name])
    return Result(row=row, record={"scores": scores, "details": {"mixing": mixing or []}, "finished": "now"})


def fake_digits(values, noise=0.0):
    """Finished rows of the digits with a total variation for each method, five splits that all rise by one pattern."""
    found = {}
    for number, (method, value) in enumerate(values.items()):
        per_split = [value + 0.01 * split + noise * (-1) ** (split + number) for split in range(5)]
        agreed = [1 - v for v in per_split]
        mixing = [GOOD] * 10 if method == order.AGAIN else None
        found[f"digits-{method}"] = fake(
            f"digits-{method}", mixing=mixing, total_variation=per_split, agreement=agreed
        )  # fmt: skip
    return found


# --- the whole ---


def test_the_study_runs_at_toy_size(made_up_data):
    assert registry.load("hmc-truth") is STUDY
    rows = toys("digits-hmc-again", "digits-deep-ensemble", "boston-sghmc")
    again, ensemble, regression = run_rows(STUDY, rows, None, root=made_up_data)
    assert set(again.scores) == set(ensemble.scores) == {
        "total_variation", "agreement", "spread", "accuracy", "log_likelihood"
    }  # fmt: skip
    assert set(regression.scores) == {"total_variation", "spread", "centre", "rmse", "log_likelihood"}
    assert again.repetitions == ensemble.repetitions == regression.repetitions == 2
    assert len(again.record["details"]["mixing"]) == 4  # two runs of two splits
    # Two truths of two splits have two chains each; an ensemble has five networks a split.
    assert [len(set(r.record["seeds"])) for r in (again, ensemble, regression)] == [8, 10, 2]


@pytest.mark.slow
@pytest.mark.parametrize("problem", ["digits", "boston"])
def test_every_method_of_the_study_runs_at_toy_size(problem, made_up_data):
    rows = toys(*(row.name for row in STUDY.rows if row.name.startswith(problem)))
    found = list(run_rows(STUDY, rows, None, root=made_up_data))
    assert [result.row.method for result in found] == methods_of(problem)
    assert len({tuple(result.record["scores"]["total_variation"]) for result in found}) == len(found)


def test_rows_are_problem_by_problem_and_cover_every_method():
    assert [row.name for row in STUDY.rows] == [
        f"{problem}-{method}" for problem in study_file.PROBLEMS for method in methods_of(problem)
    ]
    for row in STUDY.rows:
        assert row.problem.splits >= 5 and row.problem.chains >= 8
        assert STUDY.toy(row).problem.data == row.problem.data


def test_every_method_of_a_comparison_is_in_the_study_with_its_settings():
    assert set(COMPARED) <= set(study_file.METHODS)
    for name, method in study_file.METHODS.items():  # nothing has settings of its own, but a Laplace of all weights
        assert name.startswith("laplace") or method is COMPARED[name]


def test_a_method_that_is_not_run_is_told_of():
    assert len(study_file.NOT_RUN) == 1
    for problem, method in study_file.NOT_RUN:
        told = [line for line in STUDY.differences if f"`{method}`" in line and "not run on" in line]
        assert len(told) == 1 and problem in told[0].lower()


def test_methods_have_as_many_updates_or_an_eighth_where_one_is_many():
    for row in STUDY.rows:
        if row.method == order.AGAIN:
            continue
        full = study_file.METHODS[row.method].unfold()[0].full_batch
        examples = 500 if row.problem.data == "digits" else 455
        updates = row.epochs * (1 if full else math.ceil(examples / even_batch(examples)))
        many = row.method in ("hmc", "nuts", study_file.BY_HESSIAN)
        assert updates == (pytest.approx(study_file.UPDATES / 8, abs=1) if many else study_file.UPDATES)


def test_the_truth_of_a_problem_is_sampled_once_for_all_of_its_rows(made_up_data, monkeypatch):
    problem_file.truths.cache_clear()
    lengths = []
    real = problem_file.fitted

    def counting(*args, **options):
        lengths.append("chains" if "members" in options else "method")
        return real(*args, **options)

    for place in (problem_file, study_file):
        monkeypatch.setattr(place, "fitted", counting)
    list(run_rows(STUDY, toys("boston-map", "boston-swag"), None, root=made_up_data))
    assert lengths == ["chains", "method", "method"]
    problem_file.truths.cache_clear()


# --- the problem ---


def test_splits_of_the_digits_are_disjoint_and_differ():
    first, second = problem_file.load_splits(Problem(data="digits", splits=2), None)
    assert first.x_train.shape == (500, 1, 8, 8) and first.x_test.shape == (1297, 1, 8, 8)
    assert not torch.equal(first.x_train, second.x_train)
    rows = torch.cat([first.x_train, first.x_test]).flatten(1)
    everything = pl.datasets.digits()
    whole = torch.cat([everything.x_train, everything.x_test]).flatten(1)
    torch.testing.assert_close(rows.sum(0), whole.sum(0))
    # Each image once: sorted by a number that is its own.
    key = torch.linspace(1, 2, 64) ** 7
    assert torch.equal((rows @ key).sort().values.round(decimals=2), (whole @ key).sort().values.round(decimals=2))


def test_no_two_networks_share_a_seed():
    problem = Problem(data="digits")
    runs = [problem_file.seeds_of(problem, problem.chains, number * problem_file.RUN) for number in (1, 2)]
    together = [*problem_file.seeds_of(problem, 5), *runs[0], *runs[1]]
    assert len(together) == len(set(together)) == 5 * (5 + 8 + 8)


def test_an_ensemble_of_a_split_is_made_of_that_splits_networks(made_up_data):
    problem = Problem(data="bostonHousing", splits=2, hidden=4)
    sets = problem_file.load_splits(problem, made_up_data)
    climb = pl.MAP(learning_rate=0.05)
    found = problem_file.fitted(problem, sets, pl.DeepEnsemble(members=2, base=climb), epochs=2)
    model = problem_file.model_of(problem, sets[1])
    for member, seed in zip(found[1].components, (1000, 1001), strict=True):
        alone = pl.fit(
            model, sets[1].train, climb, epochs=2, seed=seed, init="reset", batch_size=40, progress=False
        )  # fmt: skip
        for name, weight in alone.mean.items():
            torch.testing.assert_close(member.mean[name], weight, rtol=1e-4, atol=1e-5)


def test_scores_are_in_the_units_of_the_target(made_up_data):
    (split,) = problem_file.load_splits(Problem(data="bostonHousing", splits=1), made_up_data)
    posterior = pl.fit(
        problem_file.model_of(Problem(data="bostonHousing", hidden=3), split), split.train, pl.MAP(learning_rate=0.05),
        epochs=20, init="reset", progress=False,
    )  # fmt: skip
    found = posterior.predict(split.x_test)
    told = problem_file.scored(found, found, split)
    mean = found.mean.double().numpy() * split.target_scale + split.target_mean
    noise = found.std.double().numpy() * split.target_scale
    y = split.y_test.double().numpy() * split.target_scale + split.target_mean
    assert 30 < y.mean() < 70  # in its own units, that is
    assert told["log_likelihood"] == pytest.approx(stats.norm(mean, noise).logpdf(y).mean(), rel=1e-5)
    assert told["rmse"] == pytest.approx(np.sqrt(((mean - y) ** 2).mean()), rel=1e-5)
    assert told["total_variation"] == told["spread"] == told["centre"] == 0.0


def test_the_gap_of_means_is_a_share_of_the_truths_deviation(made_up_data):
    (split,) = problem_file.load_splits(Problem(data="bostonHousing", splits=1), made_up_data)
    model = pl.BayesianModel(torch.nn.Linear(3, 1), pl.likelihoods.Normal(scale=0.5))
    start = model.init()
    shifted = {**start, "bias": start["bias"] + 0.2}
    truth, found = (pl.posteriors.Delta(model, weights).predict(split.x_test) for weights in (start, shifted))
    told = problem_file.scored(found, truth, split)
    assert told["centre"] == pytest.approx(0.4, rel=1e-4)
    assert told["total_variation"] == pytest.approx(2 * stats.norm.cdf(0.2) - 1, rel=1e-2)  # on a grid of 201 places
    assert told["spread"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("apart", [0.0, 3.0])
def test_chains_are_trusted_only_if_they_agree(apart):
    model = pl.BayesianModel(torch.nn.Linear(2, 1), pl.likelihoods.Normal(scale=1.0))
    rng = torch.Generator().manual_seed(0)
    chains = [
        pl.posteriors.Samples(
            model,
            {
                "weight": torch.randn(200, 1, 2, generator=rng) + apart * (number % 2),
                "bias": torch.randn(200, 1, generator=rng),
            },
        )
        for number in range(4)
    ]
    told = problem_file.agreement_of_chains(pl.mixture(chains), torch.ones(6, 2))
    assert told["chains"] == 4 and told["draws"] == 200
    if apart:
        assert told["share"] == 0.0 and told["r_hat"] > 1.5
    else:
        assert told["share"] == 1.0 and told["r_hat_95"] < 1.02 and told["ess_5"] > 300


# --- the order ---


@pytest.mark.parametrize("ties", [False, True])
def test_the_rank_correlation_is_spearmans(ties):
    rng = np.random.default_rng(3)
    for _ in range(5):
        a, b = rng.normal(size=(2, 7))
        if ties:
            a, b = a.round(), b.round()
        assert order.rank_correlation(a.tolist(), b.tolist()) == pytest.approx(stats.spearmanr(a, b)[0], nan_ok=True)


def test_a_pair_is_judged_by_differences_split_by_split():
    # Splits differ by far more than the methods do, but the methods differ by the same in each of them.
    hard = [0.1, 0.9, 0.5, 0.3, 0.7]
    scores = {"map": hard, "sgld": [h + 0.02 + 0.001 * (-1) ** i for i, h in enumerate(hard)]}
    (by_distance,) = order.pairs(scores, "total_variation")
    assert (by_distance.closer, by_distance.farther) == ("sgld", "map")
    gaps = [a - b for a, b in zip(scores["map"], scores["sgld"], strict=True)]
    assert by_distance.gap == pytest.approx(np.mean(gaps)) and by_distance.error == pytest.approx(stats.sem(gaps))
    assert by_distance.stands == "reversed" and str(by_distance).startswith("map closer than sgld by ")
    (by_agreement,) = order.pairs(scores, "agreement")  # the same numbers mean the opposite there
    assert by_agreement.stands == "same"
    noisy = {"map": hard, "sgld": hard[::-1]}
    assert order.pairs(noisy, "agreement")[0].stands == "open"


def test_the_published_numbers_themselves_stand_in_the_published_order():
    results = fake_digits({method: point.total_variation for method, point in order.PUBLISHED.items()}, noise=1e-4)
    trust, closest, by_agreement, by_distance = order.findings(results, ["digits"])
    assert "so they are held to be the truth" in trust and "8 chains" in trust
    assert closest.startswith("digits, total variation from the truth, closest first: cyclical-sgmcmc")
    # Here agreement is one minus the distance, in whose order ensemble, SGLD and SGHMC stand in the paper too.
    for line in (by_agreement, by_distance):
        assert "of the 6 methods" in line and "rank correlation 1.00" in line
        assert "of 15 pairs 15 stand as published" in line and line.endswith("none is the other way round")


def test_findings_say_where_the_order_is_another():
    upside_down = {method: 0.3 - point.total_variation for method, point in order.PUBLISHED.items()}
    results = fake_digits(upside_down, noise=1e-4)
    lines = order.findings(results, ["digits"])
    assert "rank correlation -1.00" in lines[-1] and "the other way round are 15" in lines[-1]
    assert "map closer than cyclical-sgmcmc by" in lines[-1]


def test_chains_that_do_not_agree_are_told_of():
    results = fake_digits({order.AGAIN: 0.1})
    results["digits-hmc-again"].record["details"]["mixing"] = [GOOD, {**GOOD, "share": 0.7, "r_hat_95": 1.2}]
    trust, closest = order.findings(results, ["digits"])
    assert "below 1.200" in trust and "at least 70%" in trust and "say less than they should" in trust
    assert "apart in total variation" in closest


def test_unfinished_problems_are_not_judged():
    assert order.findings({"boston-map": fake("boston-map", total_variation=[0.1] * 5)}, ["digits", "boston"]) == []


def test_findings_are_on_the_page():
    results = fake_digits({order.AGAIN: 0.02, "map": 0.2, "sgld": 0.1, "advi": 0.15}, noise=1e-4)
    small = replace(STUDY, columns={k: STUDY.columns[k] for k in ("total_variation", "agreement")}, pictures=())
    for result in results.values():
        result.record.update(
            epochs=1, seconds=1.0, device="here", threads=1, load=0.0, versions={"torch": "2"}, commit="c"
        )
    text = tables.page(small, list(results.values()), "picture.png")
    assert "What came out:" in text and "order by agreement of the 3 methods" in text
    assert text.index("What came out:") < text.index("What differs from the paper:")


def test_the_picture_shows_every_method_beside_the_published_points(tmp_path):
    values = {method: 0.05 + 0.01 * number for number, method in enumerate(methods_of("digits"))}
    assert values.keys() == order.STYLES.keys() and order.PUBLISHED.keys() <= values.keys()
    squares = {method for method, (_, mark) in order.STYLES.items() if mark == "s"}
    assert squares == order.PUBLISHED.keys() and len(set(order.STYLES.values())) == len(order.STYLES)
    study_file.draw(fake_digits(values), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_is_what_the_stored_results_render():
    results = Store(ROOT / "results", STUDY).read_all()
    folder = ROOT / "docs" / "studies"
    assert (folder / "hmc-truth.md").read_text() == tables.page(STUDY, results, picture_name(STUDY))
    pictures = [tables.file_name(STUDY, own) for own in tables.drawable(STUDY, results)]
    assert all((folder / name).is_file() for name in [picture_name(STUDY)] * bool(results) + pictures)


def test_a_standard_error_of_nothing_is_no_certainty():
    assert order.Pair("sgld", "map", 0.1, math.nan).stands == "open"
