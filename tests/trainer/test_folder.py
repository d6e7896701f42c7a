"""Folders of images as people have them: what is a class, what is a picture, what is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.data.folder import FolderError, read_folder

TRAINED = ("train/cat/1.jpg", "train/cat/2.jpg", "train/dog/1.jpg", "train/dog/2.jpg")
TESTED = ("test/cat/1.jpg", "test/dog/1.jpg")


def make(root: Path, *files: str) -> Path:
    """Make empty files, and folders where a name ends in a slash."""
    for name in files:
        path = root / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.touch()
    return root


LEFT = {
    "a notebook's copies": ".ipynb_checkpoints/1-checkpoint.jpg",
    "git": ".git/index.jpg",
    "a NAS": "@eaDir/1.jpg",
    "an archive of macOS": "__MACOSX/._1.jpg",
    "a disk's root": "lost+found/",
    "Windows' thumbnails": "Thumbs.db",
}


@pytest.mark.parametrize("left", LEFT.values(), ids=LEFT)
def test_files_of_systems_are_no_classes_and_are_told(left: str, tmp_path: Path) -> None:
    inside = (f"{place}{left}" for place in ("", "train/", "train/cat/", "test/", "test/dog/"))
    found = read_folder(make(tmp_path, *TRAINED, *TESTED, *inside))
    assert found.classes == ("cat", "dog")
    assert found.train.labels == (0, 0, 1, 1)
    assert found.test
    assert found.test.labels == (0, 1)
    assert f"not used: hidden files and folders: {left.split('/')[0]}" in found.notes


@pytest.mark.parametrize(
    "name",
    ["test", "val", "valid", "validation", "eval", "evaluation", "dev", "testing", "Test", "VAL"],
)
def test_the_part_for_the_test_has_many_names(name: str, tmp_path: Path) -> None:
    renamed = (each.replace("test", name) for each in TESTED)
    found = read_folder(make(tmp_path, *TRAINED, *renamed))
    assert found.test
    assert found.test.name == name
    assert found.test.labels == (0, 1)
    assert found.notes == (
        f"2 classes (cat, dog): 4 pictures in train/, 2 pictures in {name}/ for the test",
    )


def test_labels_are_those_of_the_training(tmp_path: Path) -> None:
    found = read_folder(make(tmp_path, *TRAINED, "train/ant/1.jpg", "val/dog/1.jpg"))
    assert found.classes == ("ant", "cat", "dog")
    assert found.test
    assert found.test.labels == (2,)
    assert "warning: val/ has no pictures of ant, cat" in found.notes


USED = {
    "endings": (
        "train/cat/3.TIF train/dog/3.gif train/cat/4.bmp train/dog/4.webp train/dog/5.JPEG",
        [0, 0, 0, 0, 1, 1, 1, 1, 1],
    ),
    "folders below a class": (
        "train/cat/images/7.jpg train/cat/cat_boxes.txt train/dog/a/b/9.jpg",
        [0, 0, 0, 1, 1, 1],
    ),
    "a folder named as a picture": ("train/cat/x.jpg/ train/cat/y.png/1.png", [0, 0, 0, 1, 1]),
}


@pytest.mark.parametrize(("more", "labels"), USED.values(), ids=USED)
def test_pictures_of_a_class(more: str, labels: list[int], tmp_path: Path) -> None:
    found = read_folder(make(tmp_path, *TRAINED, *more.split()))
    assert list(found.train.labels) == labels
    assert all(path.is_file() for path in found.pictures)


TOLD = {
    "other files": (
        "train/cat/a.HEIC train/cat/b.heic train/README train/dog/c.xml",
        "not used: files that end in .heic (2), no ending (1), .xml (1)",
    ),
    "pictures beside the classes": (
        "train/9.jpg train/8.jpg",
        "not used: 2 pictures of train/ outside of the classes",
    ),
    "two parts for the test": (
        "test/cat/1.jpg eval/cat/1.jpg test/dog/1.jpg",
        "not used: eval/, as test/ is the test",
    ),
    "two parts for the validation": (
        "test/cat/1.jpg val/cat/1.jpg valid/cat/1.jpg test/dog/1.jpg",
        "not used: valid/, as val/ is the validation",
    ),
    "a validation without a test": (
        "val/cat/1.jpg valid/cat/1.jpg",
        "not used: valid/, as val/ is the test",
    ),
    "a test without labels": (
        "test/images/1.jpg val/cat/1.jpg val/dog/1.jpg",
        "not used: test/, whose pictures are not in folders of the classes",
    ),
    "a flat test": (
        "test/1.jpg val/cat/1.jpg val/dog/1.jpg",
        "not used: test/, whose pictures are not in folders of the classes",
    ),
    "an empty test": ("test/", "not used: test/, which has no pictures"),
    "a class with one picture": (
        "train/eel/1.jpg",
        "warning: classes with one picture, which the test has not: eel",
    ),
}


@pytest.mark.parametrize(("more", "note"), TOLD.values(), ids=TOLD)
def test_what_is_not_used_is_told(more: str, note: str, tmp_path: Path) -> None:
    found = read_folder(make(tmp_path, *TRAINED, *more.split()))
    assert [each for each in found.notes if each.startswith(note)]
    assert found.classes[:2] == ("cat", "dog")


WRONG = {
    "no folder": ("", "there is no folder"),
    "no train": ("cat/1.jpg dog/1.jpg", "has no train/; put pictures there as train/<class>/"),
    "one folder more": (
        "pets/train/cat/1.jpg pets/train/dog/1.jpg",
        "has no train/; it is in pets/: add /pets to train.path",
    ),
    "two trains": (" ".join((*TRAINED, "Train/cat/1.jpg")), "has Train/ and train/: keep one"),
    "no classes": ("train/1.jpg", "train needs folders with pictures"),
    "one class": ("train/cat/1.jpg", "for two classes or more, .* it has: cat"),
    "a class without pictures": (
        " ".join((*TRAINED, "train/eel/1.heic")),
        r"train has 1 folder without a picture: eel; .*\.heic \(1\)",
    ),
    "annotations among the classes": (
        " ".join((*TRAINED, "train/annotations/1.xml")),
        "train has 1 folder without a picture: annotations; each folder is a class: add",
    ),
    "a class that the training lacks": (
        " ".join((*TRAINED, *TESTED, "test/unknown/1.jpg")),
        "test has pictures in unknown, and the classes are those of the training: cat, dog",
    ),
    "a test without classes": (
        " ".join((*TRAINED, "val/images/1.JPEG", "val/val_annotations.txt")),
        "val has pictures in images, .* move val/ away: without",
    ),
    "a flat test": (" ".join((*TRAINED, "test/1.jpg")), "test has pictures outside of folders"),
}


@pytest.mark.parametrize(("files", "message"), WRONG.values(), ids=WRONG)
def test_mistakes_are_found_before_the_training(files: str, message: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "pets", *files.split())
    with pytest.raises(FolderError, match=message) as caught:
        read_folder(folder)
    assert str(folder) in str(caught.value)


def test_links(tmp_path: Path) -> None:
    folder = make(tmp_path / "pets", *TRAINED, *TESTED)
    real = make(tmp_path, "real/1.jpg", "real/2.jpg") / "real"
    (folder / "train" / "eel").symlink_to(real)
    (folder / "train" / "cat" / "circle").symlink_to(folder / "train" / "cat")
    (folder / "train" / "cat" / "9.jpg").symlink_to(real / "1.jpg")
    assert read_folder(folder).train.labels == (0, 0, 0, 1, 1, 2, 2)
    (real / "1.jpg").unlink()
    with pytest.raises(FolderError, match=r"1 link to files that are not here: .*/cat/9\.jpg; in"):
        read_folder(folder)
