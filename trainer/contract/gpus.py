"""Peak figures of GPUs from their data sheets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sheet:
    """Half-precision operations per second (tensor cores, dense), memory in bytes per second."""

    operations: float
    memory: float


SHEETS = {
    "B200": Sheet(2250e12, 8000e9),
    "H200": Sheet(989e12, 4800e9),
    "H100 PCIe": Sheet(756e12, 2000e9),
    "H100 NVL": Sheet(835e12, 3900e9),
    "H100": Sheet(989e12, 3350e9),
    "GH200": Sheet(989e12, 4000e9),
    "A100-SXM4-80GB": Sheet(312e12, 2039e9),
    "A100 80GB PCIe": Sheet(312e12, 1935e9),
    "A100": Sheet(312e12, 1555e9),
    "A40": Sheet(149.7e12, 696e9),
    "A30": Sheet(165e12, 933e9),
    "A10": Sheet(125e12, 600e9),
    "L40S": Sheet(362e12, 864e9),
    "L4": Sheet(121e12, 300e9),
    "RTX 6000 Ada": Sheet(364.2e12, 960e9),
    "RTX A6000": Sheet(154.8e12, 768e9),
    "GeForce RTX 4090": Sheet(165.2e12, 1008e9),
    "GeForce RTX 3090": Sheet(71e12, 936e9),
    "GeForce RTX 2080 Ti": Sheet(56.9e12, 616e9),
    "TITAN RTX": Sheet(130.5e12, 672e9),
    "TITAN V": Sheet(110e12, 653e9),
    "Quadro RTX 8000": Sheet(130.5e12, 672e9),
    "Quadro RTX 6000": Sheet(130.5e12, 672e9),
    "Quadro GV100": Sheet(118.5e12, 870e9),
    "V100-SXM2": Sheet(125e12, 900e9),
    "V100-PCIE": Sheet(112e12, 900e9),
    "T4": Sheet(65e12, 320e9),
    "GB10": Sheet(125e12, 273e9),
}
"""By a part of the name that nvidia-smi prints. From NVIDIA's data sheets of each product; those of
GeForce cards, with fp32 accumulation, from the appendices of NVIDIA's architecture white papers
(Turing, GA102, Ada). GB10's sheet says 1000e12 for sparse fp4: an eighth is dense bf16."""


def sheet_of(model: str) -> Sheet | None:
    """Return the data sheet of a model; the longest name that fits wins."""
    words = f" {model.replace('NVIDIA ', '')} "
    found = [name for name in SHEETS if name in words and _whole(name, words)]
    return SHEETS[max(found, key=len)] if found else None


def _whole(name: str, words: str) -> bool:
    """Return whether the name is a whole word: `A10` is not in `A100`."""
    place = words.index(name)
    before, after = words[place - 1], words[place + len(name)]
    return not before.isalnum() and not after.isalnum()
