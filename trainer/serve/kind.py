"""The inputs and classes of a model. Without torch, since the decoders' processes import it."""

from dataclasses import asdict, dataclass
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Kind:
    """The inputs and classes of a model: as long as they stay the same, so do the requests."""

    dataset: str
    model: str
    shape: tuple[int, ...]  # [C, S, S] or, of text, [T] at most.
    labels: tuple[str, ...]  # What the classes are called; of text, the characters.
    largest: int  # The value of a white pixel.

    @property
    def text(self) -> bool:
        """Whether it goes on with a text instead of classifying pictures."""
        return self.dataset == "text"

    @classmethod
    def parse(cls, content: dict[str, Any]) -> "Kind":
        """Return the kind that `asdict` and JSON have made `content` of."""
        lists = {name: tuple(content[name]) for name in ("shape", "labels")}
        return cls(**{**content, **lists})

    def described(self) -> dict[str, Any]:
        """Return it as values that JSON has; a decoder needs no labels."""
        return asdict(self) | {"labels": ()}
