"""What the tests of several studies need."""

import pytest
from tests.experiments.made_up_sets import write_digits


@pytest.fixture(scope="session")
def made_up_digits(tmp_path_factory):
    """Images in MNIST's format whose bright row is their class."""
    return write_digits(tmp_path_factory.mktemp("data"))
