"""Every method with its command-line name, its paper and one line. Nothing here imports torch."""

from .catalogue_entry import Entry
from .catalogue_natural_gradient import ENTRIES as NATURAL_GRADIENT

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
        name="advi",
        class_name="ADVI",
        paper="Kucukelbir, Tran, Ranganath, Gelman & Blei (2017)",
        summary="The normal distribution of highest evidence bound, hyperparameters included.",
        bibtex="""\
@article{kucukelbir2017automatic,
  title   = {Automatic Differentiation Variational Inference},
  author  = {Kucukelbir, Alp and Tran, Dustin and Ranganath, Rajesh and Gelman, Andrew and Blei, David M.},
  journal = {Journal of Machine Learning Research},
  volume  = {18},
  number  = {14},
  pages   = {1--45},
  year    = {2017}
}""",
    ),
    Entry(
        name="bayes-by-backprop",
        class_name="BayesByBackprop",
        paper="Blundell, Cornebise, Kavukcuoglu & Wierstra (2015); Kingma, Salimans & Welling (2015)",
        summary="Independent normals for all weights, fitted by gradients of the evidence bound.",
        bibtex="""\
@inproceedings{blundell2015weight,
  title     = {Weight Uncertainty in Neural Networks},
  author    = {Blundell, Charles and Cornebise, Julien and Kavukcuoglu, Koray and Wierstra, Daan},
  booktitle = {Proceedings of the 32nd International Conference on Machine Learning},
  pages     = {1613--1622},
  year      = {2015}
}

@inproceedings{kingma2015variational,
  title     = {Variational Dropout and the Local Reparameterization Trick},
  author    = {Kingma, Diederik P. and Salimans, Tim and Welling, Max},
  booktitle = {Advances in Neural Information Processing Systems},
  volume    = {28},
  year      = {2015}
}

@inproceedings{wen2018flipout,
  title     = {Flipout: Efficient Pseudo-Independent Weight Perturbations on Mini-Batches},
  author    = {Wen, Yeming and Vicol, Paul and Ba, Jimmy and Tran, Dustin and Grosse, Roger},
  booktitle = {International Conference on Learning Representations},
  year      = {2018}
}""",
    ),
    Entry(
        name="mc-dropout",
        class_name="MCDropout",
        paper="Gal & Ghahramani (2016)",
        summary="Dropout in training and in prediction: every pass is a draw.",
        bibtex="""\
@inproceedings{gal2016dropout,
  title     = {Dropout as a {Bayesian} Approximation: Representing Model Uncertainty in Deep Learning},
  author    = {Gal, Yarin and Ghahramani, Zoubin},
  booktitle = {Proceedings of the 33rd International Conference on Machine Learning},
  pages     = {1050--1059},
  year      = {2016}
}""",
    ),
    Entry(
        name="concrete-dropout",
        class_name="ConcreteDropout",
        paper="Gal, Hron & Kendall (2017)",
        summary="MC dropout that learns a rate for every layer.",
        bibtex="""\
@inproceedings{gal2017concrete,
  title     = {Concrete Dropout},
  author    = {Gal, Yarin and Hron, Jiri and Kendall, Alex},
  booktitle = {Advances in Neural Information Processing Systems},
  volume    = {30},
  year      = {2017}
}""",
    ),
    *NATURAL_GRADIENT,
    Entry(
        name="sgld",
        class_name="SGLD",
        paper="Welling & Teh (2011); Li, Chen, Carlson & Carin (2016)",
        summary="Gradient steps on minibatches with noise, whose path is draws from the posterior.",
        bibtex="""\
@inproceedings{welling2011bayesian,
  title     = {{Bayesian} Learning via Stochastic Gradient {Langevin} Dynamics},
  author    = {Welling, Max and Teh, Yee Whye},
  booktitle = {International Conference on Machine Learning},
  pages     = {681--688},
  year      = {2011}
}

@inproceedings{li2016preconditioned,
  title     = {Preconditioned Stochastic Gradient {Langevin} Dynamics for Deep Neural Networks},
  author    = {Li, Chunyuan and Chen, Changyou and Carlson, David and Carin, Lawrence},
  booktitle = {AAAI Conference on Artificial Intelligence},
  pages     = {1788--1794},
  year      = {2016}
}""",
    ),
    Entry(
        name="sghmc",
        class_name="SGHMC",
        paper="Chen, Fox & Guestrin (2014); Dubey et al. (2016); Li, Zhang, Cheng, Zhu & Li (2019)",
        summary="SGD with momentum and noise, whose path is draws from the posterior.",
        bibtex="""\
@inproceedings{chen2014stochastic,
  title     = {Stochastic Gradient {Hamiltonian} {Monte Carlo}},
  author    = {Chen, Tianqi and Fox, Emily and Guestrin, Carlos},
  booktitle = {International Conference on Machine Learning},
  pages     = {1683--1691},
  year      = {2014}
}

@inproceedings{dubey2016variance,
  title     = {Variance Reduction in Stochastic Gradient {Langevin} Dynamics},
  author    = {Dubey, Kumar Avinava and Reddi, Sashank J. and Williamson, Sinead A. and P{\\'o}czos, Barnab{\\'a}s
               and Smola, Alexander J. and Xing, Eric P.},
  booktitle = {Advances in Neural Information Processing Systems},
  volume    = {29},
  year      = {2016}
}

@article{li2019stochastic,
  title     = {Stochastic Gradient {Hamiltonian} {Monte Carlo} with Variance Reduction for {Bayesian} Inference},
  author    = {Li, Zhize and Zhang, Tianyi and Cheng, Shuyu and Zhu, Jun and Li, Jian},
  journal   = {Machine Learning},
  volume    = {108},
  pages     = {1701--1727},
  year      = {2019}
}""",
    ),
    Entry(
        name="cyclical-sgmcmc",
        class_name="CyclicalSGMCMC",
        paper="Zhang, Li, Zhang, Chen & Wilson (2020)",
        summary="A sampler whose step size starts again and again, to find one mode after another.",
        bibtex="""\
@inproceedings{zhang2020cyclical,
  title     = {Cyclical Stochastic Gradient {MCMC} for {Bayesian} Deep Learning},
  author    = {Zhang, Ruqi and Li, Chunyuan and Zhang, Jianyi and Chen, Changyou and Wilson, Andrew Gordon},
  booktitle = {International Conference on Learning Representations},
  year      = {2020}
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
    Entry(
        name="nuts",
        class_name="NUTS",
        paper="Hoffman & Gelman (2014); Betancourt (2017)",
        summary="HMC whose trajectories end where they turn back, so that nobody chooses their length.",
        bibtex="""\
@article{hoffman2014nuts,
  title   = {The {No-U-Turn} Sampler: Adaptively Setting Path Lengths in {Hamiltonian Monte Carlo}},
  author  = {Hoffman, Matthew D. and Gelman, Andrew},
  journal = {Journal of Machine Learning Research},
  volume  = {15},
  pages   = {1593--1623},
  year    = {2014}
}

@misc{betancourt2017conceptual,
  title         = {A Conceptual Introduction to {Hamiltonian Monte Carlo}},
  author        = {Betancourt, Michael},
  year          = {2017},
  eprint        = {1701.02434},
  archiveprefix = {arXiv}
}

@misc{phan2019composable,
  title         = {Composable Effects for Flexible and Accelerated Probabilistic Programming in {NumPyro}},
  author        = {Phan, Du and Pradhan, Neeraj and Jankowiak, Martin},
  year          = {2019},
  eprint        = {1912.11554},
  archiveprefix = {arXiv}
}

@misc{bourabee2024gist,
  title         = {{GIST}: {Gibbs} Self-Tuning for Locally Adaptive {Hamiltonian Monte Carlo}},
  author        = {Bou-Rabee, Nawaf and Carpenter, Bob and Marsden, Milo},
  year          = {2024},
  eprint        = {2404.15253},
  archiveprefix = {arXiv}
}""",
    ),
    Entry(
        name="mala",
        class_name="MALA",
        paper="Roberts & Tweedie (1996); Roberts & Rosenthal (1998)",
        summary="One step uphill with noise, accepted or rejected: the shortest trajectory.",
        bibtex="""\
@article{roberts1996exponential,
  title   = {Exponential Convergence of {Langevin} Distributions and Their Discrete Approximations},
  author  = {Roberts, Gareth O. and Tweedie, Richard L.},
  journal = {Bernoulli},
  volume  = {2},
  number  = {4},
  pages   = {341--363},
  year    = {1996}
}

@article{roberts1998optimal,
  title   = {Optimal Scaling of Discrete Approximations to {Langevin} Diffusions},
  author  = {Roberts, Gareth O. and Rosenthal, Jeffrey S.},
  journal = {Journal of the Royal Statistical Society: Series B},
  volume  = {60},
  number  = {1},
  pages   = {255--268},
  year    = {1998}
}""",
    ),
    Entry(
        name="metropolis",
        class_name="Metropolis",
        paper="Metropolis, Rosenbluth, Rosenbluth, Teller & Teller (1953); Haario, Saksman & Tamminen (2001)",
        summary="A random walk that needs no slope; for a few unknowns.",
        bibtex="""\
@article{metropolis1953equation,
  title   = {Equation of State Calculations by Fast Computing Machines},
  author  = {Metropolis, Nicholas and Rosenbluth, Arianna W. and Rosenbluth, Marshall N. and Teller, Augusta H. and
             Teller, Edward},
  journal = {The Journal of Chemical Physics},
  volume  = {21},
  number  = {6},
  pages   = {1087--1092},
  year    = {1953}
}

@article{haario2001adaptive,
  title   = {An Adaptive {Metropolis} Algorithm},
  author  = {Haario, Heikki and Saksman, Eero and Tamminen, Johanna},
  journal = {Bernoulli},
  volume  = {7},
  number  = {2},
  pages   = {223--242},
  year    = {2001}
}""",
    ),
)


def names() -> list[str]:
    """Every method's name on the command line."""
    return [entry.name for entry in ENTRIES]


ABBREVIATIONS = {"bbb": "bayes-by-backprop", "csgmcmc": "cyclical-sgmcmc"}  # as papers have them


def find(name: str) -> Entry:
    """The method of this name, as on the command line or in Python, in any case."""
    wanted = name.strip().lower().removeprefix("pl.")
    wanted = ABBREVIATIONS.get(wanted, wanted)
    for entry in ENTRIES:
        if wanted in (entry.name, entry.class_name.lower()):
            return entry
    raise ValueError(f"method must be one of {', '.join(names())}, got {name!r}")
