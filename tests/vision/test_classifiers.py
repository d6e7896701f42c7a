"""The classifiers of torchvision, and their initial weights; most are built without values."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision import models

from tests.trainer.small import noise
from trainer.contract.job import Train
from trainer.contract.models import input_side
from trainer.core.job import JobError
from trainer.core.models import build_model
from trainer.data.files import DataMissingError
from trainer.vision.classifiers import OPTIONS, build, fitting, head_of, outline, starting_weights

FAMILIES = {
    "alexnet": "classifier.6.",
    "convnext_tiny": "classifier.2.",
    "densenet121": "classifier.",
    "efficientnet_b0": "classifier.1.",
    "googlenet": "fc.",
    "inception_v3": "fc.",
    "maxvit_t": "classifier.5.",
    "mnasnet0_5": "classifier.1.",
    "mobilenet_v2": "classifier.1.",
    "mobilenet_v3_small": "classifier.3.",
    "regnet_y_400mf": "fc.",
    "resnet50": "fc.",
    "resnext50_32x4d": "fc.",
    "shufflenet_v2_x0_5": "fc.",
    "squeezenet1_0": "classifier.1.",
    "swin_t": "head.",
    "swin_v2_t": "head.",
    "vgg11_bn": "classifier.6.",
    "vit_b_16": "heads.head.",
    "wide_resnet50_2": "fc.",
}


def train(model: str = "squeezenet1_1", dataset: str = "cifar10", **changes: Any) -> Train:
    return Train(
        dataset=dataset,
        model=f"torchvision/{model}",
        epochs=1,
        batch_size=1,
        **changes,
    )


@pytest.mark.parametrize(("name", "head"), FAMILIES.items())
def test_a_model_of_each_family_takes_the_smallest_images(name: str, head: str) -> None:
    side = input_side(f"torchvision/{name}", 8)
    model = outline(f"torchvision/{name}", 7, side)
    device = next(model.parameters()).device
    with torch.device(device):
        more = {"init_weights": False} if name in OPTIONS else {}
        published = models.get_model(name, weights=None, **more)
        # One sample on a rank: BatchNorm must see more than one pixel of it.
        scores = model.train()(torch.zeros(1, 3, side, side))
    assert scores.shape == (1, 7)
    scores.sum().backward()
    # DDP waits for the gradient of every parameter.
    assert all(each.grad is not None for each in model.parameters())
    assert head_of(model) == head
    taken = fitting(published.state_dict(), model, "the weights", name)
    own = {key for key in model.state_dict() if key.startswith(head)}
    assert own
    assert set(taken) == set(model.state_dict()) - own


def test_a_model_that_does_not_exist_is_refused_with_a_near_one() -> None:
    for name, message in (
        ("resnet_50", r"torchvision 0\.\d+.* has no resnet_50; did you mean resnet50\?"),
        ("fasterrcnn_resnet50_fpn", "fasterrcnn_resnet50_fpn is no classifier of images; "),
        ("deeplabv3_resnet50", "deeplabv3_resnet50 is no classifier of images; "),
        ("r3d_18", "r3d_18 is no classifier of images; "),
        ("raft_large", "raft_large is no classifier of images; "),
    ):
        with pytest.raises(JobError, match=f"^train.model: {message}"):
            build(f"torchvision/{name}", 2, 64)
    with pytest.raises(JobError, match="vit_b_16 takes no images of 250×250"):
        build("torchvision/vit_b_16", 2, 250)


def test_weights_start_all_but_a_head_for_other_classes(tmp_path: Path) -> None:
    torch.manual_seed(1)
    state = build("torchvision/squeezenet1_1", 5, 64).state_dict()
    # As DistributedDataParallel and a training's own checkpoint have them.
    content = {"model": {f"module.{name}": value for name, value in state.items()}, "epoch": 3}
    torch.save(content, tmp_path / "five.pth")
    job = train(weights="five.pth")
    other = starting_weights(job, 7, 64, tmp_path)
    assert other is not None
    assert set(state) - set(other) == {"classifier.1.weight", "classifier.1.bias"}
    same = starting_weights(job, 5, 64, tmp_path)
    assert same is not None
    assert set(same) == set(state)
    for name, value in same.items():
        assert torch.equal(value, state[name])
    assert starting_weights(train(), 7, 64, tmp_path) is None


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    torch.save(build("torchvision/squeezenet1_0", 5, 64).state_dict(), tmp_path / "other.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    torch.save({"weight": Path()}, tmp_path / "code.pth")
    (tmp_path / "rubbish.pth").write_bytes(b"no weights")
    for file, message in (
        ("other.pth", r"other\.pth is not of torchvision/squeezenet1_1: it lacks features"),
        ("list.pth", r"list\.pth holds no state dict of tensors"),
        ("code.pth", r"code\.pth cannot be read: .*it must be a state dict"),
        ("rubbish.pth", r"rubbish\.pth cannot be read: "),
        ("none.pth", r"there is no file .*none\.pth; put it there on every host"),
    ):
        with pytest.raises(DataMissingError, match=message):
            starting_weights(train(weights=file), 5, 64, tmp_path)


def test_weights_by_name_are_looked_for_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    with pytest.raises(JobError, match="has no weights IMAGENET1K_V2 for squeezenet1_1; did you"):
        starting_weights(train(weights="IMAGENET1K_V2"), 5, 64, tmp_path)
    job = train(weights="IMAGENET1K_V1")
    name = models.SqueezeNet1_1_Weights.IMAGENET1K_V1.url.rpartition("/")[2]
    places = (tmp_path / "weights", tmp_path / "home" / "hub" / "checkpoints")
    with pytest.raises(DataMissingError, match=f"put {name} there on every host, from https"):
        starting_weights(job, 5, 64, tmp_path)
    for place in places:
        place.mkdir(parents=True)
        (place / name).write_bytes(b"cut off")
        with pytest.raises(DataMissingError, match=f"{place / name} fails its checksum; delete"):
            starting_weights(job, 5, 64, tmp_path)
        (place / name).unlink()


@pytest.mark.parametrize("channels", [1, 3])
def test_small_images_are_enlarged_and_grey_ones_get_three_channels(channels: int) -> None:
    data = noise(channels, 28)
    data = type(data)(**{**vars(data), "side": 64})
    images = data.train.inputs[:2]
    inputs = data.prepared(images)
    assert inputs.shape == (2, 3, 64, 64)
    plain = (images.float() - 128) / 64
    torch.testing.assert_close(
        inputs.mean(dim=(2, 3)), plain.mean(dim=(2, 3)).expand(2, 3), atol=0.02, rtol=0
    )
    with torch.no_grad():
        assert build_model(train("shufflenet_v2_x0_5"), data).eval()(inputs).shape == (2, 10)
