import pytest

from plausible import datasets

READERS = {
    "mnist": datasets.mnist,
    "fashion_mnist": datasets.fashion_mnist,
    "kmnist": datasets.kmnist,
    "notmnist": datasets.notmnist,
    "cifar10": datasets.cifar10,
    "svhn": datasets.svhn,
    "CamVid": datasets.camvid,
    "uci": lambda root=None: datasets.uci("yacht", root=root),
    "pets": lambda root=None: datasets.image_folder("pets", root=root),
}
every_reader = pytest.mark.parametrize(("place", "read"), READERS.items(), ids=READERS)


@every_reader
def test_a_missing_set_is_named_with_what_to_download_and_where_to_put_it(place, read, tmp_path):
    with pytest.raises(
        FileNotFoundError, match=f"^{tmp_path}/{place}.* is missing; download .+ from .+ to {place}/ in"
    ):
        read(tmp_path)


@every_reader
def test_without_a_folder_of_data_sets_the_way_to_name_one_is_said(place, read, monkeypatch):
    monkeypatch.delenv("PLAUSIBLE_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=f"pass root= or set PLAUSIBLE_DATA to one, .* to {place}/ there"):
        read()


@every_reader
def test_the_folder_comes_from_the_environment(place, read, tmp_path, monkeypatch):
    monkeypatch.setenv("PLAUSIBLE_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(FileNotFoundError, match=f"^{tmp_path}/elsewhere/{place}"):
        read()
