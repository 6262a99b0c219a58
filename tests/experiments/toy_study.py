"""A study whose rows are arithmetic: three rows, two columns, and published numbers for two rows."""

from dataclasses import dataclass, replace

from plausible.experiments.study import Column, Outcome, Published, Row, Study

CALLS: list[str] = []  # the rows that were run, for tests of what is run twice


@dataclass(frozen=True, kw_only=True)
class ToyRow(Row):
    offset: float = 0.0
    widths: tuple[int, ...] = (3,)


def run(row, root):
    CALLS.append(row.name)
    scores = [row.offset + split for split in (1.0, 2.0, 3.0)]
    return Outcome(scores={"nll": scores, "accuracy": [s / 10 for s in scores]}, seeds=[0, 1, 2], device="none")


A = ToyRow(name="a", epochs=50)
STUDY = Study(
    name="toy",
    title="A toy",
    paper="Nobody (2000), Nothing",
    about="Arithmetic.",
    columns={
        "nll": Column(heading="NLL", form=".3f", better="low", meaning="a number"),
        "accuracy": Column(heading="accuracy", form=".2f", better="high", meaning="another"),
    },
    rows=(A, replace(A, name="b", offset=1.0), replace(A, name="c", epochs=30)),
    published={
        "a": Published(values={"nll": 3.125, "accuracy": 0.15}, errors={"nll": 0.5}, epochs=40),
        "c": Published(values={"nll": 9.875}, epochs=40),
    },
    differences=("it is a toy",),
    repetition="split",
    run=run,
    toy=lambda row: replace(row, full=False, epochs=1),
)
