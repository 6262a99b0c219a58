import numpy as np
import pytest
import torch
from PIL import Image

from plausible import datasets

FRAMES = {"train": 4, "val": 2, "test": 3}


def random_scene(part: str, i: int, height=6, width=8):
    rng = np.random.default_rng([len(part), ord(part[0]), i])
    image = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    return image, rng.integers(0, 12, (height, width), dtype=np.uint8)


@pytest.fixture
def tiny_camvid(tmp_path):
    for part, frames in FRAMES.items():
        for folder in (part, f"{part}annot"):
            (tmp_path / "CamVid" / folder).mkdir(parents=True)
        for i in range(frames):
            image, labels = random_scene(part, i)
            Image.fromarray(image).save(tmp_path / "CamVid" / part / f"frame_{i}.png")
            Image.fromarray(labels).save(tmp_path / "CamVid" / f"{part}annot" / f"frame_{i}.png")
    return tmp_path


@pytest.mark.parametrize("test_part", ["test", "val"])
@pytest.mark.parametrize("limit", [None, 1])
def test_pictures_and_their_labels_come_in_the_order_of_their_names(tiny_camvid, test_part, limit):
    data = datasets.camvid(tiny_camvid, test_part=test_part, limit=limit)
    for part, x, y in (("train", *data.train), (test_part, *data.test)):
        scenes = [random_scene(part, i) for i in range(limit or FRAMES[part])]
        assert x.dtype == torch.float32 and y.dtype == torch.int64
        np.testing.assert_allclose(x, np.stack([image for image, _ in scenes]).transpose(0, 3, 1, 2) / 255, rtol=1e-6)
        assert np.array_equal(y, np.stack([labels for _, labels in scenes]))
    assert len(data.classes) == 11  # label 11 is no class but the lack of one


def test_an_unknown_part_is_named(tiny_camvid):
    with pytest.raises(ValueError, match="test_part must be test or val, got 'train'"):
        datasets.camvid(tiny_camvid, test_part="train")


def test_missing_labels_are_named(tiny_camvid):
    (tiny_camvid / "CamVid" / "testannot" / "frame_1.png").unlink()
    with pytest.raises(FileNotFoundError, match="testannot/frame_1.png is missing; download .* to CamVid/ in"):
        datasets.camvid(tiny_camvid)


def test_a_picture_of_another_size_is_named(tiny_camvid):
    Image.fromarray(random_scene("test", 0, 5, 8)[0]).save(tiny_camvid / "CamVid" / "test" / "frame_2.png")
    with pytest.raises(ValueError, match="frame_2.png: pictures must have the shape of the first"):
        datasets.camvid(tiny_camvid)


def test_a_label_out_of_range_is_named(tiny_camvid):
    Image.fromarray(np.full((6, 8), 12, np.uint8)).save(tiny_camvid / "CamVid" / "trainannot" / "frame_0.png")
    with pytest.raises(ValueError, match="labels must be from 0 to 11, got 12"):
        datasets.camvid(tiny_camvid)


def test_a_damaged_picture_is_named(tiny_camvid):
    picture = tiny_camvid / "CamVid" / "train" / "frame_3.png"
    picture.write_bytes(picture.read_bytes()[:60])
    with pytest.raises(ValueError, match="frame_3.png is no picture that Pillow can read"):
        datasets.camvid(tiny_camvid)


def test_the_real_packed_frames_are_half_the_tutorials(data_dir):
    data = datasets.camvid(data_dir, test_part="val", limit=5)
    assert data.x_train.shape == (5, 3, 180, 240) and data.y_train.shape == (5, 180, 240)
    assert data.y_test.shape == (5, 180, 240) and set(data.y_test.unique().tolist()) <= set(range(12))
    # The sky is above the road, and brighter.
    sky, road = data.y_train == 0, data.y_train == 3
    rows = torch.arange(180.0)[None, :, None].expand_as(data.y_train)
    assert rows[sky].mean() < rows[road].mean()
    brightness = data.x_train.mean(1)
    assert brightness[sky].mean() > brightness[road].mean()
