"""Finds the files of the data sets. Standard library only: the launcher checks them before torch.

This module downloads nothing: N processes that fetch the same file during a training are slow and
may corrupt it. Each error has the command that fetches the missing files. For a job with
`download: true`, trainer/vision/downloads.py fetches them first.
"""

import importlib.util
from collections.abc import Callable
from pathlib import Path

from trainer.contract.job import Train
from trainer.contract.models import is_weights_name, of_torchvision
from trainer.contract.own import is_own
from trainer.contract.sources import is_below_hidden
from trainer.data.folder import FolderError, ImageFolder, read_folder

# The names on yann.lecun.com/exdb/mnist; each may also end in .gz.
MNIST_FILES = tuple(
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)
# The folders in the two archives on cs.toronto.edu/~kriz/cifar.html, the safer format first.
CIFAR10_FOLDERS = {
    "cifar-10-batches-bin": (*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"),
    "cifar-10-batches-py": (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"),
}
# The folders that torchvision reads, and their files.
TORCHVISION_FILES = {
    "fashion_mnist": (Path("FashionMNIST", "raw"), MNIST_FILES),
    "cifar100": (Path("cifar-100-python"), ("train", "test", "meta")),
}
READ_BY_TORCHVISION = tuple(TORCHVISION_FILES)
TEXT_ENDINGS = (".txt", ".jsonl")
PACKED = "tokens.json"
"""The manifest in a folder of tokens, which `python -m trainer.text.pack` makes."""
PACKAGES = {
    "digits": ("sklearn", "scikit-learn"),
    "folder": ("PIL", "pillow"),
    "torchvision": ("torchvision", "torchvision"),
    "tokenizers": ("tokenizers", "tokenizers"),
}
# Commands that fetch a data set; for a text, an example. Double braces are for curl's globs.
COMMANDS = {
    "mnist": "curl -f --create-dirs -o '{root}/mnist/#1-#2-ubyte.gz' 'https://ossci-datasets.s3."
    "amazonaws.com/mnist/{{train,t10k}}-{{images-idx3,labels-idx1}}-ubyte.gz'",
    "cifar10": "curl -f https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz | tar xzC {root}",
    "text": "curl -f --create-dirs -o '{root}/{path}' https://raw.githubusercontent.com/karpathy/"
    "char-rnn/master/data/tinyshakespeare/input.txt",
}


class DataMissingError(Exception):
    """A data set is missing; the message has its name, the searched folders and a remedy."""


class DownloadError(Exception):
    """A download has failed; the message names the host."""


def needs_torchvision(train: Train) -> str:
    """Return the key of a job that needs torchvision; "" if none does."""
    needs = {
        train.model: of_torchvision(train.model),
        f"dataset: {train.dataset}": train.dataset in READ_BY_TORCHVISION,
        "augmentation": bool(train.augmentation),
        "decode": train.decode == "gpu",
        "random_erasing": train.random_erasing is not None,
        "mixup": train.mixup is not None,
        "cutmix": train.cutmix is not None,
    }
    return next((name for name, needed in needs.items() if needed), "")


def require_torchvision(need: str) -> None:
    """Raise DataMissingError if torchvision, which a key needs, is not installed."""
    _find_package("torchvision", need)


def to_download(train: Train, root: Path) -> bool:
    """Whether a job may download files, and some may be missing below `root`."""
    if not train.download:
        return False
    try:
        find_files(train, root)
    except DataMissingError:
        return True
    # Only torchvision knows the files of its weights.
    return bool(train.weights) and is_weights_name(train.weights or "")


def find_weights(train: Train, root: Path) -> Path | None:
    """Find a job's file of weights below `root`; raises DataMissingError."""
    if not train.weights or is_weights_name(train.weights):
        return None
    file = root / train.weights
    if file.is_file():
        return file
    raise DataMissingError(
        f"train.weights: there is no file {file}; put it there on every host before training, or "
        f"set KIT_DATA to the folder below which it is instead of {root}"
    )


def find_folder(train: Train, root: Path) -> ImageFolder:
    """Find the pictures of `dataset: folder` below `root`; raises DataMissingError."""
    _find_package("folder")
    try:
        return read_folder(root / train.path)
    except FolderError as error:
        raise DataMissingError(str(error)) from error


def find_files(
    train: Train, root: Path, tell: Callable[[str], object] = lambda _: None
) -> list[Path]:
    """Find a job's files below `root`, those for training first; raises DataMissingError.

    `tell` gets lines about found and unused files.
    """
    dataset = train.dataset
    if need := needs_torchvision(train):
        require_torchvision(need)
    find_weights(train, root)
    if is_own(dataset):
        return []
    if dataset == "digits":
        # Do not import the package: this would take as long as the import of torch.
        return [_find_package(dataset) / "datasets" / "data" / "digits.csv.gz"]
    if dataset == "folder":
        found = find_folder(train, root)
        for note in found.notes:
            tell(note)
        return found.pictures
    if dataset == "shards":
        _find_package("folder")
        return [] if train.url else [_find_index(root / train.path)]
    if dataset == "text" and (train.tokenizer or is_packed(root / train.path)):
        return _find_tokens(train, root)
    choices = _choices(train.dataset, train.path, root)
    best = min(choices, key=lambda files: sum(not file.is_file() for file in files))
    missing = [file.name for file in best if not file.is_file()]
    if not missing:
        return best
    looked, gone = ", ".join(str(files[0].parent) for files in choices), ", ".join(missing)
    raise DataMissingError(
        f"{dataset} is not complete in any of {looked}: missing {gone}; put the original files "
        f"there on every host before training (nothing is downloaded unless the job says "
        f"`download: true`), or set KIT_DATA to the folder that has them instead of {root}"
        + _command(train, root)
    )


def _choices(dataset: str, path: str, root: Path) -> list[list[Path]]:
    """Return alternative sets of files; one of them must be complete."""
    if dataset == "text":
        if (root / path).is_dir():
            fix = "write `tokenizer: bpe`, or name one file for a text of characters"
            raise DataMissingError(f"{root / path} is a folder; {fix}")
        return [[root / path]]
    if dataset == "mnist":
        folders = [root, root / "mnist", root / "MNIST" / "raw"]  # The last is torchvision's.
        return [[_or_gz(folder / name) for name in MNIST_FILES] for folder in folders]
    if dataset in TORCHVISION_FILES:
        below, names = TORCHVISION_FILES[dataset]
        return [[root / below / name for name in names]]
    places = [each / name for each in (root, root / "cifar10") for name in CIFAR10_FOLDERS]
    return [[place / file for file in CIFAR10_FOLDERS[place.name]] for place in places]


def _find_tokens(train: Train, root: Path) -> list[Path]:
    _find_package("tokenizers", f"tokenizer: {train.tokenizer}" if train.tokenizer else "tokens")
    if is_packed(source := root / train.path):
        if train.tokenizer:
            fix = "leave out train.tokenizer, which is in it"
            raise DataMissingError(f"{source} has tokens instead of texts; {fix}")
        return [source / PACKED]
    file = root / str(train.tokenizer)
    if train.tokenizer != "bpe" and not file.is_file():
        raise DataMissingError(
            f"train.tokenizer: there is no file {file}; put a tokenizer.json there on every host, "
            "or write `tokenizer: bpe`"
        )
    return find_texts(source)


def is_packed(folder: Path) -> bool:
    """Whether a folder has tokens instead of texts."""
    return (folder / PACKED).is_file()


def find_texts(path: Path) -> list[Path]:
    """Return the file at a path, or the texts of the folder there; raises DataMissingError."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataMissingError(f"there is no text {path}; put it there on every host")
    # Exclude hidden files: macOS creates some that end in .txt but are not texts.
    every = (each for each in sorted(path.rglob("*")) if each.suffix in TEXT_ENDINGS)
    found = [each for each in every if not is_below_hidden(str(each.relative_to(path)))]
    if not found:
        what = f"{path} has no texts ({', '.join(TEXT_ENDINGS)}), and no {PACKED} of packed ones"
        raise DataMissingError(f"{what}; put texts there on every host")
    return found


def _find_index(folder: Path) -> Path:
    if (index := folder / "shards.npz").is_file():
        return index
    raise DataMissingError(
        f"{folder} has no shards.npz; put the shards there on every host, and make their index: "
        f"python -m trainer.streaming.index {folder}"
    )


def _command(train: Train, root: Path) -> str:
    """Return the shell command that fetches a data set, if there is one."""
    command = COMMANDS.get(train.dataset)
    return f"; to fetch them: {command.format(root=root, path=train.path)}" if command else ""


def _find_package(name: str, need: str = "") -> Path:
    """Return the folder of a package that a data set or key needs; raises DataMissingError."""
    module, package = PACKAGES[name]
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        needed = f"{need or name} needs"
        by = f" {package}:" if need else ""
        raise DataMissingError(f"{needed}{by} the trainer image, or: pip install {package}")
    return Path(spec.origin).parent


def _or_gz(path: Path) -> Path:
    packed = path.with_name(path.name + ".gz")
    return packed if packed.is_file() else path
