"""The size of the built-in GPT, from a job's `options`. Standard library only.

options: {preset: gpt2}
options: {layers: 8, heads: 8, width: 512, positions: rotary}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from trainer.contract.words import nearest, shown

POSITIONS = ("learned", "rotary")
Fault = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Gpt:
    """A GPT: `layers` blocks of `heads` heads over features of `width`.

    `positions` are learned (Radford et al. 2019) or rotary (Su et al. 2021, arXiv 2104.09864).
    `tied`: whether the output layer shares its weights with the token embedding. `dropout`: the
    dropout rate in training, as in GPT-2.
    """

    layers: int = 4
    heads: int = 4
    width: int = 128
    positions: str = "learned"
    tied: bool = True
    dropout: float = 0.0

    def parameters(self, vocabulary: int, context: int) -> int:
        """Count the trained values, for a `vocabulary` of tokens and a `context` of positions."""
        ends = vocabulary * self.width * (1 if self.tied else 2) + self.width
        positions = context * self.width if self.positions == "learned" else 0
        return ends + positions + self.layers * self.block_parameters

    def operations(self, vocabulary: int, context: int) -> float:
        """Return the training FLOPs per token: 6 N + 12 L W T, as for PaLM's MFU.

        6 for each of the N weights in matrix products, forward and backward, and those
        of attention over T tokens (Chowdhery et al. 2022, arXiv 2204.02311, appendix B). Embeddings
        are looked up, not multiplied, unless they are also the weights of the output layer.
        """
        weights = vocabulary * self.width + self.layers * 12 * self.width**2
        return 6 * weights + 12 * self.layers * self.width * context

    @property
    def block_parameters(self) -> int:
        """The trained values of one block: 4 W² for attention, 8 W² for the two layers, norms."""
        return 12 * self.width**2 + 2 * self.width


PRESETS = {
    # nanoGPT's shakespeare_char on a CPU (github.com/karpathy/nanoGPT), without dropout and biases.
    "characters": Gpt(),
    # Table 2 of Radford et al. 2019, with the usual names of the four sizes; no biases either.
    "gpt2": Gpt(layers=12, heads=12, width=768),
    "gpt2-medium": Gpt(layers=24, heads=16, width=1024),
    "gpt2-large": Gpt(layers=36, heads=20, width=1280),
    "gpt2-xl": Gpt(layers=48, heads=25, width=1600),
    # Table 2.1 of Brown et al. 2020 (arXiv 2005.14165), with rotary positions as in later models.
    "gpt3-2.7b": Gpt(layers=32, heads=32, width=2560, positions="rotary", tied=False),
    "gpt3-6.7b": Gpt(layers=32, heads=32, width=4096, positions="rotary", tied=False),
    "gpt3-13b": Gpt(layers=40, heads=40, width=5120, positions="rotary", tied=False),
}
NUMBERS = ("layers", "heads", "width")
NAMES = ("preset", *(each.name for each in fields(Gpt)))


def gpt_of(options: Mapping[str, Any] | None) -> Gpt:
    """Return the GPT of valid options: a preset, or the defaults, with changes."""
    changes = dict(options or {})
    return replace(PRESETS[changes.pop("preset", "characters")], **changes)


def gpt_fault(options: Mapping[str, Any]) -> Fault | None:
    """Return the fault in the options of a GPT; None if they are valid."""
    for name, value in options.items():
        if fault := _option_fault(name, value):
            return fault
    gpt = gpt_of(options)
    if gpt.width % gpt.heads:
        what = f"the width {gpt.width} is not a multiple of the {gpt.heads} heads"
        return what, f"write for example `width: {64 * gpt.heads}`"
    if gpt.positions == "rotary" and gpt.width // gpt.heads % 2:
        what = f"rotary positions need an even number of features a head, not {_head(gpt)}"
        return what, f"write for example `width: {64 * gpt.heads}`"
    return None


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < 1


def _head(gpt: Gpt) -> int:
    return gpt.width // gpt.heads


def _option_fault(name: str, value: object) -> Fault | None:
    if name not in NAMES:
        return f"gpt has no option {shown(name)}", nearest(name, list(NAMES))
    if name == "preset" and (not isinstance(value, str) or value not in PRESETS):
        return f"the preset {shown(value)} is not known", nearest(value, list(PRESETS))
    if name in NUMBERS and (type(value) is not int or not 0 < value <= 2**16):
        what = f"{name} is {shown(value)}, not a whole number of 1 to 65536"
        return what, f"write for example `{name}: {getattr(PRESETS['gpt2'], name)}`"
    if name == "positions" and value not in POSITIONS:
        return f"positions {shown(value)} are not known", nearest(value, list(POSITIONS))
    if name == "dropout" and (isinstance(value, bool) or not _is_share(value)):
        return (
            f"dropout is {shown(value)}, not a share of 0 to 1",
            "write for example `dropout: 0.1`",
        )
    if name == "tied" and type(value) is not bool:
        return f"tied is {shown(value)}", "write `tied: true` or `tied: false`"
    return None
