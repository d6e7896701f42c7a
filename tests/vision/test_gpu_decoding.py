"""Decoding on the GPU, with torchvision's decoder of the CPU in place of the GPU's."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from tests.trainer.hosts import complete_steps, hosts, write_job
from tests.trainer.small import settings
from tests.vision.test_preparation import photograph
from tests.vision.test_training import draw_pictures, launch
from trainer.contract import events
from trainer.data.decoding import jpeg_content
from trainer.data.images import Decoder, ImageFiles
from trainer.data.load import load_data
from trainer.data.samples import DataError
from trainer.vision.gpu import GpuDecoder, gpu_decoder

CPU = torch.device("cpu")


def turned(image: Image.Image) -> Image.Exif:
    exif = image.getexif()
    exif[274] = 6
    return exif


@pytest.fixture
def pictures(tmp_path: Path) -> ImageFiles:
    """Files that the GPU decodes, and others."""
    for label in ("a", "b"):
        place = tmp_path / "pets" / "train" / label
        place.mkdir(parents=True)
        for number in range(4):
            photograph(150 + 9 * number, 120, seed=number).save(place / f"{number}.jpg", quality=95)
        photograph(90, 110).save(place / "4.png")
        image = photograph(120, 90)
        image.save(place / "5.jpg", exif=turned(image))
        image.convert("CMYK").save(place / "6.jpg")
        image.convert("L").save(place / "7.jpg")
    job = settings("folder", "cnn", path="pets", image_size=64, augmentation="trivial")
    samples = load_data(job, tmp_path).train
    assert isinstance(samples, ImageFiles)
    return samples


def batch_of(samples: ImageFiles, decoder: Decoder | None, epoch: int = 3) -> Tensor:
    own = replace(samples, decoder=decoder)
    indices = torch.arange(len(samples))
    own.expect([indices], epoch)
    return own.take(indices, CPU)[0]


def test_only_usual_jpeg_files_are_left_to_the_gpu(tmp_path: Path) -> None:
    image = photograph(40, 30)
    for name, other in (("rgb", image), ("grey", image.convert("L"))):
        image_file = tmp_path / f"{name}.jpg"
        other.save(image_file)
        content = jpeg_content(image_file)
        assert content is not None
        assert bytes(content.tolist()) == image_file.read_bytes()
    image.save(tmp_path / "x.png")
    image.save(tmp_path / "turned.jpg", exif=turned(image))
    image.convert("CMYK").save(tmp_path / "cmyk.jpg")
    for name in ("x.png", "turned.jpg", "cmyk.jpg"):
        assert jpeg_content(tmp_path / name) is None
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"bad\.jpg cannot be read .*; replace or delete it"):
        jpeg_content(tmp_path / "bad.jpg")


def test_images_are_augmented_as_by_the_cpu(pictures: ImageFiles) -> None:
    before = torch.get_rng_state()
    images = batch_of(pictures, GpuDecoder(CPU))
    assert torch.equal(before, torch.get_rng_state())
    assert images.shape == (len(pictures), 3, 64, 64)
    assert torch.equal(images, batch_of(pictures, GpuDecoder(CPU)))
    assert not torch.equal(images, batch_of(pictures, GpuDecoder(CPU), epoch=4))
    plain = batch_of(pictures, None)
    for number, file in enumerate(pictures.files):
        if jpeg_content(file) is None:
            assert torch.equal(images[number], plain[number]), file
        else:  # The same crop of the same picture; resizing rounds elsewhere.
            difference = (images[number].float() - plain[number].float()).abs().mean()
            assert difference < 12, file


def test_test_images_are_always_decoded_by_the_cpu(pictures: ImageFiles) -> None:
    indices = torch.arange(len(pictures))
    for decoder in (None, GpuDecoder(CPU)):
        own = replace(pictures, decoder=decoder, transform=None)
        own.expect([indices])
        images, _ = own.take(indices, CPU)
        expected = replace(pictures, transform=None).take(indices, CPU)[0]
        assert torch.equal(images, expected)


class Broken(GpuDecoder):
    """Cannot decode a file."""

    def __init__(self, reason: str) -> None:
        super().__init__(CPU)
        self.reason = reason

    def decode(self, contents: Sequence[Tensor]) -> list[Tensor]:
        if len(contents) > 1:
            raise RuntimeError(self.reason)
        return super().decode(contents)


def test_what_the_gpu_cannot_decode_is_done_by_the_cpu(pictures: ImageFiles) -> None:
    assert torch.equal(batch_of(pictures, Broken("unsupported")), batch_of(pictures, None))
    with pytest.raises(RuntimeError, match="CUDA error: misaligned"):
        batch_of(pictures, Broken("CUDA error: misaligned address"))


def test_a_damaged_file_is_named(pictures: ImageFiles) -> None:
    file = pictures.files[2]
    file.write_bytes(file.read_bytes()[:300])
    with pytest.raises(DataError, match=f"{file} cannot be"):
        batch_of(pictures, GpuDecoder(CPU))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_cannot_decode_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_decoder(torch.device("cuda"), "rank 3 on pc7") is None
    said = capsys.readouterr().out
    assert "decode: rank 3 on pc7: torchvision cannot decode on the GPU (" in said


def test_without_a_gpu_the_cpu_decodes_and_a_line_says_so(tmp_path: Path) -> None:
    draw_pictures(tmp_path / "pets")
    changes = {
        "dataset": "folder", "path": "pets", "image_size": 32, "model": "cnn", "epochs": 1,
        "augmentation": "trivial", "batch_size": 5,
    }  # fmt: skip
    states = []
    with hosts(tmp_path) as local:
        for name, more in (("cpu", {}), ("gpu", {"decode": "gpu"})):
            job = write_job(tmp_path, name, **changes, **more)
            task = launch(local, job, name, local.rendezvous("1:1"))
            assert task.wait() == 0, task.text
            assert task.of(events.Epoch)
            said = "has no GPU: its images are decoded on the CPU"
            assert task.text.count(said) == (2 if more else 0)
            folder = tmp_path / name
            step = folder / complete_steps(folder)[-1]
            states.append(torch.load(step / "state.pt", weights_only=True)["model"])
    for key, value in states[0].items():
        assert torch.equal(value, states[1][key])
