"""MixUp, CutMix and random erasing by torchvision's transforms, for any division of a batch."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision.transforms import v2

from tests.trainer.small import noise, settings
from trainer.core.task import cross_entropy
from trainer.data.augment import MIXING, Augmentation
from trainer.data.images import ImageFiles, repeated
from trainer.data.pictures import View
from trainer.data.samples import DataSet
from trainer.data.shards import pieces, seed_of, seeded

COUNT, CLASSES = 64, 10


def data() -> DataSet:
    return noise(3, 16, CLASSES, COUNT)


def augmented(
    train: dict[str, Any], batch: Tensor, shares: list[float], steps: int, epoch: int = 1
) -> tuple[Tensor, Tensor]:
    """Augment a global batch as ranks of these shares do; in the order of the batch."""
    known = data()
    augmentation = Augmentation.of_epoch(settings(batch_size=8, **train), known, epoch)
    found = []
    for rank in range(len(shares)):
        for piece in pieces(batch, rank, shares, steps):
            indices = augmentation.reads(batch, piece)
            images, labels = known.train.take(indices, torch.device("cpu"))
            prepared = known.prepared(augmentation.apply(indices, images))
            inputs, targets = augmentation.apply_prepared(batch, piece, prepared, labels)
            assert len(inputs) == len(targets) == len(piece)
            found.append((inputs, targets))
    images, targets = (torch.cat(each) for each in zip(*found, strict=True))
    return images, targets


KINDS = [
    {"mixup": 0.2},
    {"cutmix": 1.0},
    {"mixup": 0.2, "cutmix": 1.0},
    {"mixup": 0.8, "random_erasing": 0.5},
]


@pytest.mark.parametrize("train", KINDS, ids=str)
@pytest.mark.parametrize("count", [40, 37])
def test_any_division_of_a_batch_mixes_the_same_pairs(train: dict[str, Any], count: int) -> None:
    batch = torch.randperm(COUNT, generator=torch.Generator().manual_seed(2))[:count]
    images, targets = augmented(train, batch, [1.0], -(-count // 8))
    torch.testing.assert_close(targets.sum(dim=1), torch.ones(count))
    for shares, steps in (([0.5, 0.5], 3), ([0.2, 0.8], 4), ([1 / 3] * 3, 1), ([0.0, 1.0], 2)):
        other, same = augmented(train, batch, shares, steps)
        assert torch.equal(images, other)
        assert torch.equal(targets, same)
    again, _ = augmented(train, batch, [1.0], 1, epoch=2)
    assert not torch.equal(images, again)


@pytest.mark.parametrize("kind", [v2.MixUp, v2.CutMix])
def test_a_block_is_what_torchvision_makes_of_it(kind: Any) -> None:
    known, batch = data(), torch.arange(8)
    key = {v2.MixUp: "mixup", v2.CutMix: "cutmix"}[kind]
    images, targets = augmented({key: 0.7}, batch, [1.0], 1)
    inputs, labels = known.train.take(batch, torch.device("cpu"))
    with seeded(seed_of(0, 1, 0, MIXING)):
        expected = v2.RandomChoice([kind(alpha=0.7, num_classes=CLASSES)])(
            known.prepared(inputs), labels
        )
    assert torch.equal(images, expected[0])
    assert torch.equal(targets, expected[1])


def test_blocks_get_either_transform_and_another_share() -> None:
    train, batch = {"mixup": 1.0, "cutmix": 1.0}, torch.arange(COUNT)
    images, targets = augmented(train, batch, [1.0], 8)
    known = data()
    plain = known.prepared(known.train.inputs)
    # CutMix leaves the first pixel or replaces it; MixUp's are all sums.
    kept = []
    for mixed, own in zip(torch.split(images, 8), torch.split(plain, 8), strict=True):
        kept.append(bool(((mixed == own) | (mixed == own.roll(1, 0))).all()))
    assert set(kept) == {True, False}
    assert len({float(each.max()) for each in torch.split(targets, 8)}) > 3


def test_the_loss_of_mixed_targets_is_the_mean_of_both_losses() -> None:
    draw = torch.Generator().manual_seed(1)
    scores = torch.randn(6, CLASSES, generator=draw)
    first, second = torch.randint(CLASSES, (2, 6), generator=draw)
    one, two = (torch.nn.functional.one_hot(each, CLASSES).float() for each in (first, second))
    for smoothing in (0.0, 0.1):
        mixed = cross_entropy(scores, 0.3 * one + 0.7 * two, smoothing)
        parts = [cross_entropy(scores, each, smoothing) for each in (first, second)]
        torch.testing.assert_close(mixed, 0.3 * parts[0] + 0.7 * parts[1])


def test_a_share_of_the_images_has_a_box_erased() -> None:
    batch = torch.arange(COUNT)
    images, labels = augmented({"random_erasing": 0.25}, batch, [1.0], 1)
    known = data()
    plain = known.prepared(known.train.inputs)
    assert torch.equal(labels, known.train.labels)
    changed = [n for n in range(COUNT) if not torch.equal(images[n], plain[n])]
    assert 5 < len(changed) < 28
    for number in changed:
        box = (images[number] != plain[number]).any(dim=0)
        rows, columns = (box.any(dim=side).nonzero() for side in (1, 0))
        assert (images[number][:, box] == 0).all()
        area = (rows.max() - rows.min() + 1) * (columns.max() - columns.min() + 1)
        assert area / 16**2 < 0.4


def test_augmentation_leaves_the_generator_of_dropout_as_it_is() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    augmented({"mixup": 0.2, "random_erasing": 1.0}, torch.arange(16), [1.0], 2)
    assert torch.equal(before, torch.get_rng_state())


def test_copies_of_an_image_are_apart_and_others_are_left_out() -> None:
    order = torch.randperm(3001, generator=torch.Generator().manual_seed(0))
    found = repeated(order, 4)
    assert len(found) == 3001
    assert len(set(found.tolist())) == 3001
    images = found % 3001
    counts = images.bincount(minlength=3001)
    assert set(counts.tolist()) <= {0, 1, 2, 3, 4}
    assert int((counts == 4).sum()) >= 740
    places = [(images == image).nonzero().flatten() for image in images[:50].tolist()]
    assert all(int(each.diff().min()) >= 200 for each in places)


def test_copies_are_read_from_one_file_with_their_own_seeds() -> None:
    nothing, labels = torch.empty(0, 3, 8, 8), torch.tensor([0, 1, 1])
    files = [Path(f"{number}.jpg") for number in range(3)]

    def change(image: Any) -> Any:
        return image

    samples = ImageFiles(nothing, labels, files, change, 5, view=View(8), copies=2)
    assert samples.numbers == 6
    assert sorted((samples.order(0, 0) % 3).bincount(minlength=3).tolist()) == [0, 1, 2]
    request = samples.request([2, 5], 0)
    assert request.files == [files[2]] * 2
    assert request.seeds[0] != request.seeds[1]
