"""The catalogue's natural-gradient methods. Nothing here imports torch."""

from .catalogue_entry import Entry

OSAWA = """\
@inproceedings{osawa2019practical,
  title     = {Practical Deep Learning with {Bayesian} Principles},
  author    = {Osawa, Kazuki and Swaroop, Siddharth and Jain, Anirudh and Eschenhagen, Runa and Turner, Richard E. and
               Yokota, Rio and Khan, Mohammad Emtiyaz},
  booktitle = {Advances in Neural Information Processing Systems},
  volume    = {32},
  year      = {2019}
}"""

ENTRIES = (
    Entry(
        name="vogn",
        class_name="VOGN",
        paper="Khan et al. (2018); Osawa et al. (2019)",
        summary="Independent normals by an optimiser whose curvature is the squared gradients of single examples.",
        bibtex="""\
@inproceedings{khan2018fast,
  title     = {Fast and Scalable {Bayesian} Deep Learning by Weight-Perturbation in {Adam}},
  author    = {Khan, Mohammad Emtiyaz and Nielsen, Didrik and Tangkaratt, Voot and Lin, Wu and Gal, Yarin and
               Srivastava, Akash},
  booktitle = {International Conference on Machine Learning},
  pages     = {2611--2620},
  year      = {2018}
}

"""
        + OSAWA,
    ),
    Entry(
        name="ogn",
        class_name="OGN",
        paper="Osawa et al. (2019)",
        summary="VOGN without draws: the highest point, and a normal by the squared gradients there.",
        bibtex=OSAWA,
    ),
    Entry(
        name="ivon",
        class_name="IVON",
        paper="Shen et al. (2024)",
        summary="Independent normals, with the curvature from gradients at draws.",
        bibtex="""\
@inproceedings{shen2024variational,
  title     = {Variational Learning is Effective for Large Deep Networks},
  author    = {Shen, Yuesong and Daheim, Nico and Cong, Bai and Nickl, Peter and Marconi, Gian Maria and Bazan, Clement
               and Yokota, Rio and Gurevych, Iryna and Cremers, Daniel and Khan, Mohammad Emtiyaz and M{\\"o}llenhoff,
               Thomas},
  booktitle = {International Conference on Machine Learning},
  year      = {2024}
}""",
    ),
    Entry(
        name="kfac",
        class_name="KFAC",
        paper="Martens & Grosse (2015)",
        summary="The highest point by natural gradients, and a Kronecker-factored normal by the same curvature.",
        bibtex="""\
@inproceedings{martens2015optimizing,
  title     = {Optimizing Neural Networks with {Kronecker}-Factored Approximate Curvature},
  author    = {Martens, James and Grosse, Roger},
  booktitle = {International Conference on Machine Learning},
  pages     = {2408--2417},
  year      = {2015}
}""",
    ),
    Entry(
        name="noisy-kfac",
        class_name="NoisyKFAC",
        paper="Zhang, Sun, Duvenaud & Grosse (2018)",
        summary="A Kronecker-factored normal by natural gradients and curvature at its own draws.",
        bibtex="""\
@inproceedings{zhang2018noisy,
  title     = {Noisy Natural Gradient as Variational Inference},
  author    = {Zhang, Guodong and Sun, Shengyang and Duvenaud, David and Grosse, Roger},
  booktitle = {International Conference on Machine Learning},
  pages     = {5852--5861},
  year      = {2018}
}""",
    ),
    Entry(
        name="natural-gradient-vi",
        class_name="NaturalGradientVI",
        paper="Khan & Rue (2023); Lin, Schmidt & Khan (2020)",
        summary="The normal of highest evidence bound, by Newton-like steps with the whole Hessian; for small networks.",
        bibtex="""\
@article{khan2023bayesian,
  title   = {The {Bayesian} Learning Rule},
  author  = {Khan, Mohammad Emtiyaz and Rue, H{\\aa}vard},
  journal = {Journal of Machine Learning Research},
  volume  = {24},
  number  = {281},
  pages   = {1--46},
  year    = {2023}
}

@inproceedings{lin2020handling,
  title     = {Handling the Positive-Definite Constraint in the {Bayesian} Learning Rule},
  author    = {Lin, Wu and Schmidt, Mark and Khan, Mohammad Emtiyaz},
  booktitle = {International Conference on Machine Learning},
  pages     = {6116--6126},
  year      = {2020}
}""",
    ),
)
