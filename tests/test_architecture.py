"""Who may import whom, and what no file may contain."""

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "plausible"

# From the bottom up. A layer imports those below its row, never its neighbours.
ROWS = (
    ("weights", "distributed", "metrics", "datasets", "networks"),
    ("core",),
    ("curvature",),
    ("inference", "gp", "optim"),
    ("selection", "evidence"),
    ("estimators", "report", "plots", "tabular"),
    ("__main__", "cli", "cli_table", "cli_check", "cli_reproduce", "experiments"),
)
HEIGHT = {layer: height for height, row in enumerate(ROWS) for layer in row}
NEIGHBOURS = {
    ("optim", "inference"),  # drop-in optimisers are the same update functions
    ("__main__", "cli"),
    ("cli", "cli_table"),  # some of its commands
    ("cli", "cli_check"),
    ("cli", "cli_reproduce"),
    ("cli_reproduce", "cli_table"),  # how errors are shown
    ("cli_reproduce", "experiments"),
    ("report", "tabular"),  # a comparison may be of a file
}
SHARED_FAMILY = "point"  # every family under inference may start from a point estimate
TOP = len(ROWS) - 1

# (file under src/plausible, imported module): reason. For an import that must go against the direction.
ALLOWED: dict[tuple[str, str], str] = {}

# file under src/plausible: reason. For a way to run code from data that is fenced in.
FENCED: dict[str, str] = {
    "datasets/cifar_pickle.py": "CIFAR's python version is pickles; each name in them becomes a stand-in or is refused",
}

VAGUE_NAMES = {"util", "utils", "misc", "helper", "helpers", "common"}
LONGEST_FILE = 400


def python_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def imported_modules(tree: ast.AST, file: Path, source: Path) -> Iterator[str]:
    """Our modules that a file imports, as `plausible.core.model`; inside functions too."""
    package = ("plausible", *file.relative_to(source).parts[:-1])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*above, *filter(None, [node.module])))
            names = [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and _called_name(node) in ("import_module", "__import__"):
            names = [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == "plausible")


def _called_name(call: ast.Call) -> str:
    if isinstance(call.func, ast.Name):
        return call.func.id
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def complaint(file: Path, module: str, source: Path) -> str | None:
    """Why this file may not import this module, or None if it may."""
    place = file.relative_to(source)
    layer = place.with_suffix("").parts[0]
    target = module.split(".")[1] if "." in module else ""
    if target not in HEIGHT:  # `import plausible`, `from plausible import fit`: the package itself, so everything
        return None if HEIGHT[layer] == TOP else "only the top row may import the package itself"
    if target != layer:
        below = HEIGHT[target] < HEIGHT[layer]
        return None if below or (layer, target) in NEIGHBOURS else f"{layer} does not stand above {target}"
    if layer == "inference" and len(place.parts) > 2:
        return _family_complaint(place.parts[1], module, source)
    return None


def _family_complaint(family: str, module: str, source: Path) -> str | None:
    target = module.split(".")[2] if module.count(".") >= 2 else ""
    if target in (family, SHARED_FAMILY):
        return None
    if (source / "inference" / target).is_dir():
        return f"family {family} does not import family {target or 'inference (all of them)'}"
    if (source / "inference" / f"{target}.py").is_file():
        return None
    return "inference itself imports every family; name the module"


def direction_complaints(source: Path) -> list[str]:
    found = []
    for file in python_files(source):
        place = file.relative_to(source)
        if place == Path("__init__.py"):
            continue  # it re-exports everything
        if place.with_suffix("").parts[0] not in HEIGHT:
            found.append(f"{place}: no layer of this name; give it a row in this test or move it into a layer")
            continue
        for module in sorted(set(imported_modules(ast.parse(file.read_text(), str(file)), file, source))):
            reason = complaint(file, module, source)
            if reason and (place.as_posix(), module) not in ALLOWED:
                found.append(f"{place} imports {module}: {reason}")
    return found


def danger_complaints(tree: ast.AST) -> list[str]:
    """Ways to run code from data."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None)
            roots = [module] if module else [alias.name for alias in node.names]
            for name in roots:
                if name.split(".")[0] in ("pickle", "_pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve"):
                    found.append(f"line {node.lineno}: imports {name}")
            if module == "torch" and any(alias.name == "load" for alias in node.names):
                found.append(f"line {node.lineno}: call it torch.load, so that this test sees it")
        elif isinstance(node, ast.Call):
            call = ast.unparse(node.func)
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if call in ("eval", "exec", "builtins.eval", "builtins.exec"):
                found.append(f"line {node.lineno}: calls {call}")
            if call == "torch.load" and given.get("weights_only") != "True":
                found.append(f"line {node.lineno}: torch.load without weights_only=True")
            if given.get("allow_pickle", "False") != "False":
                found.append(f"line {node.lineno}: {call} with allow_pickle")
    return found


def test_imports_point_down_only():
    assert direction_complaints(SOURCE) == []


def test_every_allowance_is_still_needed():
    for (place, module), reason in ALLOWED.items():
        file = SOURCE / place
        assert reason.strip(), f"{place} imports {module}: say why"
        assert file.is_file() and module in imported_modules(ast.parse(file.read_text(), str(file)), file, SOURCE)


def test_no_file_has_a_name_that_says_nothing():
    folders = [ROOT / name for name in ("src", "tests", "benchmarks", "examples")]
    paths = [path for folder in folders for path in folder.rglob("*") if path.is_dir() or path.suffix == ".py"]
    assert [str(path) for path in paths if path.stem.strip("_").removeprefix("test_") in VAGUE_NAMES] == []


def test_no_source_file_is_too_long_to_read():
    lengths = {str(file.relative_to(SOURCE)): len(file.read_text().splitlines()) for file in python_files(SOURCE)}
    assert {name: length for name, length in lengths.items() if length > LONGEST_FILE} == {}


def test_nothing_runs_code_from_data():
    for file in python_files(SOURCE):
        if file.relative_to(SOURCE).as_posix() not in FENCED:
            assert danger_complaints(ast.parse(file.read_text(), str(file))) == [], file


def test_every_fence_is_still_needed():
    for place, reason in FENCED.items():
        file = SOURCE / place
        assert reason.strip(), f"{place}: say why"
        assert danger_complaints(ast.parse(file.read_text(), str(file))) == ["line 7: imports pickle"]


FORBIDDEN_IMPORTS = [
    ("weights/a.py", "from plausible.core import model"),
    ("weights/a.py", "from plausible.metrics import nll"),
    ("core/a.py", "from plausible.inference.point import MAP"),
    ("core/a.py", "def late():\n    from plausible.curvature import diagonal"),
    ("core/deep/a.py", "from ...inference import point"),
    ("core/a.py", "from .. import optim"),
    ("core/a.py", "import plausible"),
    ("core/a.py", "from plausible import fit"),
    ("core/a.py", "import importlib\nimportlib.import_module('plausible.cli')"),
    ("inference/mcmc/a.py", "from plausible.inference.averaging.swag import SWAG"),
    ("inference/mcmc/a.py", "from ..averaging import SWAG"),
    ("inference/mcmc/a.py", "from plausible.inference import SWAG"),
    ("inference/point/a.py", "from plausible.inference.mcmc import HMC"),
    ("inference/point/a.py", "from plausible.optim import VOGN"),
    ("estimators.py", "from plausible.cli import app"),
    ("estimators.py", "import plausible as pl"),
    ("somewhere.py", ""),
]

PERMITTED_IMPORTS = [
    ("core/a.py", "from plausible.weights.tree import stack"),
    ("core/deep/a.py", "from ..model import BayesianModel"),
    ("core/a.py", "import torch"),
    ("inference/mcmc/a.py", "from plausible.inference.point.map import MAP"),
    ("inference/mcmc/a.py", "from . import b"),
    ("inference/__init__.py", "from plausible.inference.averaging import SWAG\nfrom .mcmc import HMC"),
    ("optim/a.py", "from plausible.inference.averaging import SWAG"),
    ("cli.py", "import plausible as pl"),
    ("__init__.py", "from plausible.cli import app"),
]


def tree_with(tmp_path: Path, place: str, code: str) -> Path:
    for family in ("point", "averaging", "mcmc"):
        (tmp_path / "inference" / family).mkdir(parents=True)
    file = tmp_path / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(textwrap.dedent(code))
    return tmp_path


@pytest.mark.parametrize(("place", "code"), FORBIDDEN_IMPORTS)
def test_an_import_against_the_direction_is_found(tmp_path, place, code):
    assert len(direction_complaints(tree_with(tmp_path, place, code))) == 1


@pytest.mark.parametrize(("place", "code"), PERMITTED_IMPORTS)
def test_an_import_along_the_direction_passes(tmp_path, place, code):
    assert direction_complaints(tree_with(tmp_path, place, code)) == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "from torch import load",
        "numpy.load(path, allow_pickle=True)",
        "eval(text)",
        "exec(text)",
    ],
)
def test_a_way_to_run_code_from_data_is_found(code):
    assert len(danger_complaints(ast.parse(code))) == 1


@pytest.mark.parametrize("code", ["network.eval()", "torch.load(path, weights_only=True)", "numpy.load(path)"])
def test_a_call_that_only_looks_dangerous_passes(code):
    assert danger_complaints(ast.parse(code)) == []
