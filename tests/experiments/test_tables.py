"""Tables and pages: ours beside the published numbers, and never where that would mislead."""

from dataclasses import replace

from rich.console import Console
from tests.experiments.toy_study import STUDY

from plausible.experiments import tables
from plausible.experiments.reproduce import run_rows, write_page
from plausible.experiments.results import Store
from plausible.experiments.study import Picture


def results(study=STUDY, rows=None):
    return list(run_rows(study, study.rows if rows is None else rows, None))


def printed(study, found):
    console = Console(width=120, color_system=None)
    with console.capture() as text:
        console.print(tables.table(study, found))
    return text.get() + "\n".join(tables.remarks(study, found))


def test_a_line_has_our_mean_and_error_the_published_number_and_the_difference():
    line = tables.cells(STUDY, results()[0])
    # 1, 2, 3: mean 2, standard error 1/√3 = 0.577. (3.125 − 2) / √(1/3 + 1/4) = 1.47; (0.2 − 0.15) / 0.0577 = 0.87.
    ours = ["2.000 ± 0.577", "0.20 ± 0.06"]
    theirs = ["3.125 ± 0.5; 1.5 SE better", "0.15; 0.9 SE better"]
    expected = ["a", *(f"{a}<br>*{b}*" for a, b in zip(ours, theirs, strict=True))]
    assert line == expected


def test_a_worse_number_is_called_worse():
    worse = replace(STUDY.rows[0], offset=5.0)
    assert "worse" in tables.cells(STUDY, results(rows=[worse])[0])[1]


def test_a_row_without_a_published_number_has_ours_alone():
    assert tables.cells(STUDY, results()[1])[1] == "3.000 ± 0.577"


def test_a_row_that_was_trained_shorter_stands_alone_and_the_reason_is_given():
    text = printed(STUDY, results())
    assert "3.125" in text and "9.875" not in text
    assert "c was trained for 30 epochs, the paper's for 40: not put side by side" in text


def test_longer_training_is_named_among_the_differences():
    assert tables.differences(STUDY, results())[0] == "50 epochs where the paper has 40 (a)"
    assert "it is a toy" in tables.differences(STUDY, results())


def test_toys_are_never_printed_beside_published_numbers():
    text = printed(STUDY, results(rows=[replace(STUDY.toy(row), epochs=10_000) for row in STUDY.rows]))
    assert "published" not in text and "3.125" not in text and "9.875" not in text
    assert "these numbers mean nothing" in text


def test_a_page_has_the_table_the_picture_and_what_is_missing(tmp_path):
    store = Store(tmp_path / "results", STUDY)
    list(run_rows(STUDY, STUDY.rows[:2], store))
    page = write_page(STUDY, store, tmp_path / "pages")
    text = page.read_text()
    assert "| a | 2.000 ± 0.577<br>*3.125 ± 0.5; 1.5 SE better* |" in text
    assert "Not run yet: c." in text and "![A toy: ours and the published numbers](toy.png)" in text
    assert (page.parent / "toy.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_of_the_same_numbers_is_the_same_file(tmp_path):
    store = Store(tmp_path / "results", STUDY)
    list(run_rows(STUDY, STUDY.rows, store))
    for folder in ("one", "two"):
        write_page(STUDY, store, tmp_path / folder)
    assert (tmp_path / "one/toy.png").read_bytes() == (tmp_path / "two/toy.png").read_bytes()


def test_a_page_without_results_says_so(tmp_path):
    page = write_page(STUDY, Store(tmp_path / "results", STUDY), tmp_path / "pages")
    assert "No row has been run yet." in page.read_text()


def test_a_score_that_a_row_need_not_have_is_a_dash():
    optional = replace(STUDY.columns["accuracy"], everywhere=False)

    def run(row, root):
        found = STUDY.run(row, root)
        return found if row.name != "b" else replace(found, scores={"nll": found.scores["nll"]})

    study = replace(STUDY, columns={**STUDY.columns, "accuracy": optional}, run=run)
    found = results(study)
    assert tables.cells(study, found[1]) == ["b", "3.000 ± 0.577", "–"]
    assert printed(study, found).count("accuracy  ") == 2


def test_a_study_may_have_pictures_of_its_own_drawn_from_stored_details(tmp_path):
    def run(row, root):
        return replace(STUDY.run(row, root), details={"drawn": [row.offset]})

    def draw(found, path):
        path.write_text(str({name: result.record["details"]["drawn"] for name, result in found.items()}))

    picture = Picture(name="own", caption="Offsets.", needs=("a", "b"), draw=draw)
    study = replace(STUDY, run=run, pictures=(picture,))
    store = Store(tmp_path / "results", study)
    list(run_rows(study, study.rows[:1], store))
    assert "toy-own.png" not in write_page(study, store, tmp_path).read_text()
    list(run_rows(study, study.rows[:2], store))
    assert "![Offsets.](toy-own.png)" in write_page(study, store, tmp_path).read_text()
    assert (tmp_path / "toy-own.png").read_text() == "{'a': [0.0], 'b': [1.0]}"
