"""Every method with its command-line name, its paper and one line. Nothing here imports torch."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One method.

    Attributes:
        name: Its name on the command line.
        class_name: Its name in Python, as in `pl.SWAG`.
        paper: Authors and year.
        summary: What it does, in one line.
        bibtex: The paper, ready to cite.
    """

    name: str
    class_name: str
    paper: str
    summary: str
    bibtex: str


MACKAY = """\
@article{mackay1992practical,
  title   = {A Practical {Bayesian} Framework for Backpropagation Networks},
  author  = {MacKay, David J. C.},
  journal = {Neural Computation},
  volume  = {4},
  number  = {3},
  pages   = {448--472},
  year    = {1992}
}"""

ENTRIES = (
    Entry(
        name="map",
        class_name="MAP",
        paper="MacKay (1992)",
        summary="The single most probable set of weights.",
        bibtex=MACKAY,
    ),
    Entry(
        name="deep-ensemble",
        class_name="DeepEnsemble",
        paper="Lakshminarayanan, Pritzel & Blundell (2017)",
        summary="Several networks trained from different starts, averaged.",
        bibtex="""\
@inproceedings{lakshminarayanan2017simple,
  title     = {Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles},
  author    = {Lakshminarayanan, Balaji and Pritzel, Alexander and Blundell, Charles},
  booktitle = {Advances in Neural Information Processing Systems},
  volume    = {30},
  year      = {2017}
}""",
    ),
    Entry(
        name="swag",
        class_name="SWAG",
        paper="Maddox, Garipov, Izmailov, Vetrov & Wilson (2019)",
        summary="A low-rank Gaussian around the average of a run's last weights.",
        bibtex="""\
@inproceedings{maddox2019simple,
  title     = {A Simple Baseline for {Bayesian} Uncertainty in Deep Learning},
  author    = {Maddox, Wesley J. and Garipov, Timur and Izmailov, Pavel and Vetrov, Dmitry and Wilson, Andrew Gordon},
  booktitle = {Advances in Neural Information Processing Systems},
  volume    = {32},
  year      = {2019}
}""",
    ),
    Entry(
        name="multiswag",
        class_name="MultiSWAG",
        paper="Wilson & Izmailov (2020)",
        summary="A mixture of SWAG Gaussians around several modes.",
        bibtex="""\
@inproceedings{wilson2020bayesian,
  title     = {Bayesian Deep Learning and a Probabilistic Perspective of Generalization},
  author    = {Wilson, Andrew Gordon and Izmailov, Pavel},
  booktitle = {Advances in Neural Information Processing Systems},
  volume    = {33},
  year      = {2020}
}""",
    ),
    Entry(
        name="laplace",
        class_name="Laplace",
        paper="MacKay (1992); Daxberger, Kristiadi, Immer, Eschenhagen, Bauer & Hennig (2021)",
        summary="A Gaussian from the curvature at the most probable weights, and its evidence.",
        bibtex=MACKAY
        + """

@inproceedings{daxberger2021laplace,
  title     = {{Laplace} Redux -- Effortless {Bayesian} Deep Learning},
  author    = {Daxberger, Erik and Kristiadi, Agustinus and Immer, Alexander and Eschenhagen, Runa and Bauer, Matthias
               and Hennig, Philipp},
  booktitle = {Advances in Neural Information Processing Systems},
  volume    = {34},
  year      = {2021}
}""",
    ),
    Entry(
        name="hmc",
        class_name="HMC",
        paper="Duane, Kennedy, Pendleton & Roweth (1987); Neal (2011)",
        summary="Draws from the posterior itself; for small networks.",
        bibtex="""\
@article{duane1987hybrid,
  title   = {Hybrid {Monte Carlo}},
  author  = {Duane, Simon and Kennedy, A. D. and Pendleton, Brian J. and Roweth, Duncan},
  journal = {Physics Letters B},
  volume  = {195},
  number  = {2},
  pages   = {216--222},
  year    = {1987}
}

@incollection{neal2011mcmc,
  title     = {{MCMC} Using {Hamiltonian} Dynamics},
  author    = {Neal, Radford M.},
  booktitle = {Handbook of {Markov} Chain {Monte Carlo}},
  editor    = {Brooks, Steve and Gelman, Andrew and Jones, Galin L. and Meng, Xiao-Li},
  publisher = {Chapman \\& Hall/CRC},
  chapter   = {5},
  year      = {2011}
}""",
    ),
)


def names() -> list[str]:
    """Every method's name on the command line."""
    return [entry.name for entry in ENTRIES]


def find(name: str) -> Entry:
    """The method of this name, as on the command line or in Python, in any case."""
    wanted = name.strip().lower()
    for entry in ENTRIES:
        if wanted in (entry.name, entry.class_name.lower()):
            return entry
    raise ValueError(f"method must be one of {', '.join(names())}, got {name!r}")
