"""The inputs and classes of a model. It does not import torch, as decoders use this module."""

from dataclasses import asdict, dataclass
from typing import Any

from numpy.typing import NDArray

from trainer.text.vocabulary import Vocabulary, vocabulary_of

Array = NDArray[Any]
JSON_VALUES = "JSON values"
PIXELS = "0 (black) to 255 (white)"


@dataclass(frozen=True)
class Kind:
    """The inputs and classes of a model: models of the same kind accept the same requests."""

    dataset: str
    model: str
    shape: tuple[int, ...]  # [C, S, S] or, of text, [T] at most.
    labels: tuple[str, ...]  # Names of the classes; for text, the characters.
    largest: int  # The value of a white pixel.
    values: str = ""  # For custom data, the type of the numbers; "" for pictures and text.
    resize: int = 0  # As in `View`: for photographs.
    interpolation: str = "bilinear"  # As in `View`.
    tokenizer: str = ""  # Of text as tokens, which has no labels: a tokenizer.json.
    tokens: int = 0  # The number of such tokens.
    answers: bool = False  # Whether a custom function answers instead of classes.

    @property
    def integers(self) -> bool:
        """Whether a sample has whole numbers."""
        return self.values.startswith(("int", "uint"))

    @property
    def handled(self) -> bool:
        """Whether a custom handler takes the inputs, any JSON values."""
        return self.values == JSON_VALUES

    @property
    def text(self) -> bool:
        """Whether the model completes texts instead of classifying pictures."""
        return self.dataset == "text"

    @property
    def classes(self) -> int:
        """The number of scores of a sample."""
        return self.tokens or len(self.labels)

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens of texts."""
        return vocabulary_of(self.labels, self.tokenizer)

    @classmethod
    def parse(cls, content: dict[str, Any]) -> "Kind":
        """Return the kind from which `asdict` and JSON have made `content`."""
        lists = {name: tuple(content[name]) for name in ("shape", "labels")}
        return cls(**{**content, **lists})

    def described(self) -> dict[str, Any]:
        """Return JSON values for a decoder, which needs no labels."""
        return asdict(self) | {"labels": (), "tokenizer": ""}
