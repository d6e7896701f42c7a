"""From texts to tokens and back: characters, or byte-pair tokens of the package tokenizers.

It does not import torch: the server's decoders use this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END = "<|endoftext|>"
ENDS = (END, "<|end_of_text|>", "<|begin_of_text|>", "</s>", "<eos>", "<s>", "[SEP]")
"""The usual names of tokens that separate documents; the first that a tokenizer has is used."""
REPLACEMENT = "\ufffd"  # Replaces invalid bytes.


class Vocabulary(Protocol):
    """Tokens by number."""

    start: int
    """The token after which a text begins."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text; raises UnknownError."""

    def decode(self, tokens: Sequence[int], after: Sequence[int] = ()) -> str:
        """Return the text of tokens that follow those of `after`.

        An incomplete character at the end is left out.
        """


class TokenizerError(Exception):
    """A tokenizer cannot be used; the message has the reason."""


class UnknownError(Exception):
    """A text has characters that no token has; the argument is their set."""


class Characters:
    """Each character is a token."""

    def __init__(self, characters: Sequence[str]) -> None:
        self._characters = characters
        self._numbers = {each: number for number, each in enumerate(characters)}
        self.start = self._numbers.get("\n", 0)  # Most texts begin after a newline.

    def encode(self, text: str) -> list[int]:
        """As in `Vocabulary`."""
        if strange := set(text) - self._numbers.keys():
            raise UnknownError(strange)
        return [self._numbers[each] for each in text]

    def decode(self, tokens: Sequence[int], after: Sequence[int] = ()) -> str:  # noqa: ARG002
        """As in `Vocabulary`."""
        return "".join(self._characters[each] for each in tokens)


class Tokens:
    """The tokens of a trained tokenizer."""

    def __init__(self, content: str) -> None:
        """`content` is that of a tokenizer.json; raises TokenizerError."""
        self.content = content
        self.tokenizer = _parsed(content)
        ends = (self.tokenizer.token_to_id(name) for name in ENDS)
        end = next((each for each in ends if each is not None), None)
        if end is None:
            raise TokenizerError(f"the tokenizer has no token to separate documents; add {END}")
        self.start = end

    @cached_property
    def size(self) -> int:
        """The number of tokens for a model: the next multiple of 64.

        Tensor cores are fast for the matrices of the first and the last layer at this size. No
        text has the additional tokens.
        """
        return -(-self.tokenizer.get_vocab_size() // 64) * 64

    def encode(self, text: str) -> list[int]:
        """As in `Vocabulary`."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_all(self, texts: list[str]) -> list[list[int]]:
        """Return the tokens of many texts, which all cores compute."""
        found = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [each.ids for each in found]

    def decode(self, tokens: Sequence[int], after: Sequence[int] = ()) -> str:
        """As in `Vocabulary`."""
        before = self.tokenizer.decode(list(after)) if after else ""
        whole: str = self.tokenizer.decode([*after, *tokens])
        return whole[len(before) :].rstrip(REPLACEMENT)


@lru_cache(maxsize=2)
def vocabulary_of(characters: tuple[str, ...], tokenizer: str) -> Vocabulary:
    """Return the vocabulary of a data set or a checkpoint; raises TokenizerError."""
    return Tokens(tokenizer) if tokenizer else Characters(characters)


def train_tokenizer(texts: Iterator[str], size: int) -> str:
    """Train byte-level byte-pair encoding (Sennrich et al. 2016; on bytes, Radford et al. 2019).

    Return the content of a tokenizer.json with `size` tokens or, of a short text, fewer. The same
    texts give the same tokens. Every text can be encoded, as each byte is a token.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.to_str()


def _parsed(content: str) -> Tokenizer:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise TokenizerError("it needs the package: pip install tokenizers") from error
    try:
        tokenizer = Tokenizer.from_str(content)
    except Exception as error:  # The package has no class for it.
        reason = str(error).splitlines()[0][:200]
        raise TokenizerError(f"it is not a tokenizer.json ({reason})") from error
    # Files for other uses may truncate or pad texts: a training needs whole texts.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
