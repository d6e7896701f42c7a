"""Test images and served pictures: prepared as torchvision's own transforms do."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision import models
from torchvision.transforms._presets import ImageClassification
from torchvision.transforms.functional import InterpolationMode

from tests.trainer.small import settings
from trainer.core.job import JobError
from trainer.data.load import load_data
from trainer.data.pictures import View
from trainer.data.views import test_view as view_of_test
from trainer.serve.kind import Kind
from trainer.serve.pictures import decode

SIZES = ((240, 180), (180, 240), (301, 177), (97, 600), (64, 64), (1024, 768))


def photograph(width: int, height: int, seed: int = 0) -> Image.Image:
    """Smooth colours with noise."""
    draw = np.random.default_rng(seed)
    rows, columns = np.mgrid[:height, :width]
    waves = [np.sin(rows / 9 + n) + np.cos(columns / 7 - n) for n in range(3)]
    pixels = np.stack(waves, axis=-1) * 55 + 128 + draw.normal(0, 12, (height, width, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def write(folder: Path) -> list[Path]:
    files = []
    for part in ("train", "test"):
        for label in ("a", "b"):
            place = folder / "pets" / part / label
            place.mkdir(parents=True)
            for number, size in enumerate(SIZES):
                photograph(*size, seed=number).save(place / f"{number}.jpg", quality=90)
    for label in ("a", "b"):
        files += sorted((folder / "pets" / "test" / label).iterdir())
    return files


def served(file: Path, view: View, mean: Tensor, deviation: Tensor) -> Tensor:
    """What a model of the server gets."""
    shape = (3, view.side, view.side)
    kind = Kind(
        "folder", "x", shape, ("a", "b"), 255,
        resize=view.resize, interpolation=view.interpolation,
    )  # fmt: skip
    values = torch.from_numpy(decode(file.read_bytes(), kind, 10**7))
    return (values - mean) / deviation


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("side", "resize"), [(224, 232), (96, 112), (64, 64), (65, 90)])
def test_images_are_those_of_torchvision(
    side: int, resize: int, interpolation: str, tmp_path: Path
) -> None:
    files = write(tmp_path)
    changes = {"test_image_size": side, "test_resize": resize, "interpolation": interpolation}
    job = settings(
        "folder", "torchvision/resnet18", path="pets", image_size=64, **changes
    )  # fmt: skip
    data = load_data(job, tmp_path)
    images, _ = data.test.take(torch.arange(len(files)), torch.device("cpu"))
    transform = ImageClassification(
        crop_size=side, resize_size=resize, interpolation=InterpolationMode(interpolation)
    )
    prepared, view = data.prepared(images), view_of_test(job)[0]
    assert prepared.shape[1:] == (3, side, side)
    for number, file in enumerate(files):
        expected = transform(Image.open(file).convert("RGB"))
        torch.testing.assert_close(prepared[number], expected, atol=2e-6, rtol=0)
        answered = served(file, view, data.mean, data.deviation)
        assert torch.equal(answered, prepared[number])


@pytest.mark.parametrize(
    ("model", "weights"),
    [
        ("resnet50", models.ResNet50_Weights.IMAGENET1K_V2),
        ("vit_b_16", models.ViT_B_16_Weights.IMAGENET1K_V1),
        ("vit_b_16", models.ViT_B_16_Weights.IMAGENET1K_SWAG_E2E_V1),
        ("swin_t", models.Swin_T_Weights.IMAGENET1K_V1),
        ("efficientnet_v2_l", models.EfficientNet_V2_L_Weights.IMAGENET1K_V1),
    ],
)
def test_the_transform_of_weights_is_used_for_the_test(
    model: str, weights: models.WeightsEnum, tmp_path: Path
) -> None:
    files = write(tmp_path)
    transform = weights.transforms()
    side = transform.crop_size[0]
    job = settings(
        "folder", f"torchvision/{model}", path="pets", image_size=side,
        weights=weights.name, test_transform="weights",
    )  # fmt: skip
    data = load_data(job, tmp_path)
    images, _ = data.test.take(torch.arange(4), torch.device("cpu"))
    for number, inputs in enumerate(data.prepared(images)):
        expected = transform(Image.open(files[number]).convert("RGB"))
        torch.testing.assert_close(inputs, expected, atol=2e-6, rtol=0)
    # Training images have the same mean and deviation.
    assert data.train.inputs.shape[-1] == side


def test_weights_are_tested_with_the_size_of_the_training_or_a_larger_one(tmp_path: Path) -> None:
    write(tmp_path)
    for model, size, fix in (
        ("resnet50", 256, "write `image_size: 224`, or less"),
        ("vit_b_16", 240, "write `image_size: 224`$"),
    ):
        job = settings(
            "folder", f"torchvision/{model}", path="pets", image_size=size,
            weights="IMAGENET1K_V1", test_transform="weights",
        )  # fmt: skip
        with pytest.raises(JobError, match=f"is tested with images of 224×224; {fix}"):
            load_data(job, tmp_path)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_large_picture_is_served_as_it_is_tested(kind: str, tmp_path: Path) -> None:
    """Also without `test_resize`, as the trainer's own models are usually tested."""
    place = tmp_path / "pets"
    for part, label in (("train", "a"), ("train", "b"), ("test", "a")):
        (place / part / label).mkdir(parents=True)
        content = io.BytesIO()
        photograph(1500, 1100).save(content, kind)
        (place / part / label / f"x.{kind.lower()}").write_bytes(content.getvalue())
    data = load_data(settings("folder", "resnet18", path="pets", image_size=64), tmp_path)
    images, _ = data.test.take(torch.arange(1), torch.device("cpu"))
    file = next((place / "test" / "a").iterdir())
    answered = served(file, View(64), data.mean, data.deviation)
    assert torch.equal(answered, data.prepared(images)[0])
