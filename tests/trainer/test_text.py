"""Texts as tokens: documents, tokenizers, packed folders, masked attention; no process but pack."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.hosts import ROOT
from tests.trainer.small import settings
from trainer.contract.gpt import Gpt
from trainer.core.gpt import GPT, initialise
from trainer.data.files import DataMissingError, find_files
from trainer.data.identity import identity
from trainer.data.load import load_data
from trainer.data.samples import DataError, DataSet
from trainer.text import load as tokens_loading
from trainer.text.documents import PIECE, Piece, count_bytes, divide, read_documents
from trainer.text.pack import pack
from trainer.text.packed import load_packed
from trainer.text.vocabulary import (
    Characters,
    TokenizerError,
    Tokens,
    UnknownError,
    train_tokenizer,
)
from trainer.text.windows import Windows

STORY = "The quick brown fox jumps over the lazy dog.\nHéllo wörld: 3 € and 😀!\n"
CPU = torch.device("cpu")


def documents(*files: Path, separator: str | None = None) -> list[str]:
    """The whole documents."""
    found = list[str]()
    for piece in read_documents(list(files), separator):
        if piece.begins:
            found.append("")
        found[-1] += piece.text
    return found


def test_documents_are_files_lines_and_what_separators_divide(tmp_path: Path) -> None:
    plain, lines = tmp_path / "a.txt", tmp_path / "b.jsonl"
    plain.write_text("one\r\ntwo\n<end>\nthree\n  <end> \n<end>\nfo<end>ur\n", "utf-8", newline="")
    lines.write_text('{"text": "é\\n€", "id": 1}\n\n{"text": ""}\n{"text": "last"}', "utf-8")
    assert documents(plain) == ["one\r\ntwo\n<end>\nthree\n  <end> \n<end>\nfo<end>ur\n"]
    divided = documents(plain, lines, separator="<end>")
    assert divided == ["one\r\ntwo\n", "three\n", "fo<end>ur\n", "é\n€", "last"]


def test_a_large_document_comes_in_pieces(tmp_path: Path) -> None:
    text = "\n".join(f"line {n}" for n in range(200_000)) + "x" * (2 * PIECE)
    (tmp_path / "a.txt").write_text(text)
    pieces = list(read_documents([tmp_path / "a.txt"]))
    assert [piece.begins for piece in pieces] == [True] + [False] * (len(pieces) - 1)
    assert max(len(piece.text) for piece in pieces) <= 2 * PIECE
    assert "".join(piece.text for piece in pieces) == text


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.txt", b"abc\xff", "a.txt is not a text in UTF-8"),
        ("a.jsonl", b'{"text": "a"}\n{"text"', "a.jsonl:2: is not JSON"),
        ("a.jsonl", b"[" * 100_000, "a.jsonl:1: is not JSON"),
        ("a.jsonl", b'{"words": "a"}', 'a.jsonl:1: has no text; write an object as {"text": "'),
        ("a.jsonl", b'["text"]', "a.jsonl:1: has no text"),
        ("a.jsonl", b'{"text": "\\ud800"}', "a.jsonl:1: half of a character"),
    ],
)
def test_a_damaged_text_is_named_by_file_and_line(
    tmp_path: Path, name: str, content: bytes, told: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as raised:
        list(read_documents([tmp_path / name]))
    assert told in str(raised.value)


@pytest.mark.parametrize(
    "texts",
    [["a\n" * 50], ["aaaa\n"] * 20, ["x" * 95 + "\n", "yyyy"], ["é" * 50], ["b" * 90, "c" * 10]],
)
def test_the_last_tenth_is_the_test(texts: list[str]) -> None:
    pieces = [Piece(text, begins=True) for text in texts]
    total = count_bytes(iter(pieces))
    parts = list(divide(iter(pieces), total))
    trained = "".join(piece.text for tested, piece in parts if not tested)
    assert trained + "".join(piece.text for tested, piece in parts if tested) == "".join(texts)
    assert [tested for tested, _ in parts] == sorted(tested for tested, _ in parts)
    assert 0.8 * total <= len(trained.encode()) <= 0.9 * total
    first = next(piece for tested, piece in parts if tested)
    assert first.begins, "the test would begin in a document"


def test_a_test_that_begins_between_two_pieces_begins_a_document() -> None:
    pieces = [
        Piece("a" * 90, begins=True),
        Piece("b" * 5, begins=False),
        Piece("c" * 5, begins=False),
    ]
    assert list(divide(iter(pieces), 100)) == [
        (False, pieces[0]), (True, Piece("b" * 5, begins=True)), (True, pieces[2]),
    ]  # fmt: skip


def test_byte_pairs_give_back_every_text() -> None:
    tokens = Tokens(train_tokenizer(iter([STORY] * 50), 300))
    assert tokens.tokenizer.get_vocab_size() == 300
    assert tokens.size == 320  # The next multiple of 64.
    for text in (STORY, "ß漢字\0\t", " leading", ""):
        assert tokens.decode(tokens.encode(text)) == text
    assert len(tokens.encode(STORY)) < len(STORY.encode()) / 2
    assert tokens.decode([tokens.start, *tokens.encode("a"), 319]) == "a"


def test_half_of_a_character_is_not_shown() -> None:
    tokens = Tokens(train_tokenizer(iter(["abc"]), 257))  # A token for each byte.
    known, emoji = tokens.encode("é "), tokens.encode("😀")
    assert len(emoji) == 4
    shown = [tokens.decode(emoji[:count], after=known) for count in range(5)]
    assert shown == ["", "", "", "", "😀"]


def test_characters_are_tokens_too() -> None:
    characters = Characters(("\n", "a", "b"))
    assert (characters.start, characters.encode("ab\n")) == (0, [1, 2, 0])
    assert characters.decode([1, 2, 0], after=[1]) == "ab\n"
    with pytest.raises(UnknownError) as raised:
        characters.encode("abcd")
    assert raised.value.args == ({"c", "d"},)


def test_what_is_no_tokenizer_is_refused() -> None:
    with pytest.raises(TokenizerError, match=r"not a tokenizer\.json"):
        Tokens('{"version": "1.0"}')
    content = json.loads(train_tokenizer(iter([STORY]), 300))
    content["added_tokens"] = []
    del content["model"]["vocab"]["<|endoftext|>"]
    with pytest.raises(TokenizerError, match="no token to separate documents"):
        Tokens(json.dumps(content))


def test_two_processes_train_the_same_tokens(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(STORY * 60)
    for name in ("one", "two"):
        command = [sys.executable, "-m", "trainer.text.pack", "a.txt", name, "--vocabulary", "300"]
        done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, check=False)
        assert done.returncode == 0
    for file in sorted((tmp_path / "one").iterdir()):
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()
    names = {each.name for each in (tmp_path / "one").iterdir()}
    assert names == {"tokens.json", "tokenizer.json", "train.bin", "test.bin"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["none.txt", "out"], "there is no text none.txt"),
        (["empty", "out"], "empty has no texts (.txt, .jsonl)"),
        (["a.txt", "empty"], "empty exists; name another folder"),
        (["blank.txt", "out"], "its texts are empty"),
        (["a.txt", "out", "--tokenizer", "a.txt"], "a.txt: it is not a tokenizer.json"),
        (["a.txt", "out", "--tokenizer", "no.json"], "no.json"),
        (["a.txt", "out", "--vocabulary", "256"], "--vocabulary 256: 257 is the least"),
        (["a.txt", "out", "--vocabulary", "300", "--tokenizer", "x"], "leave out one of the two"),
    ],
)
def test_pack_tells_mistakes(tmp_path: Path, arguments: list[str], told: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.txt").write_text(STORY)
    (tmp_path / "blank.txt").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "trainer.text.pack", *arguments],
        cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, told in done.stderr) == (2, True), done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".tokens-*")), "a draft is left"


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    (tmp_path / "words.jsonl").write_text(f"{json.dumps({'text': STORY})}\n" * 90)
    pack([tmp_path / "words.jsonl"], tmp_path / "packed", vocabulary=300)
    return tmp_path / "packed"


def stream(data: DataSet) -> list[int]:
    """The tokens of the training part, from its windows."""
    windows = torch.arange(len(data.train))
    inputs, labels = data.train.take(windows, CPU)
    assert torch.equal(inputs.flatten()[1:], labels.flatten()[:-1])
    assert inputs.untyped_storage().data_ptr() != labels.untyped_storage().data_ptr()
    return [*inputs.flatten().tolist(), int(labels[-1, -1])]


def test_windows_follow_each_other(packed: Path) -> None:
    data = load_packed(packed, 16)
    assert (data.end, data.classes, data.text, data.shape) == (0, 320, True, (16,))
    tokens = stream(data)
    kept = np.fromfile(packed / "train.bin", np.uint16).tolist()
    assert tokens == kept[: len(tokens)]
    assert len(kept) - len(tokens) < 16
    one = [0, *Tokens(data.tokenizer).encode(STORY)]
    assert tokens[: 3 * len(one)] == one * 3
    # Of 90 documents, 81 are nine tenths of the bytes.
    assert kept.count(0) == 81
    test = np.fromfile(packed / "test.bin", np.uint16)
    assert data.bytes_per_token == pytest.approx(9 * len(STORY.encode()) / len(test))


def test_each_epoch_cuts_the_text_at_another_place() -> None:
    """Each token is in one window of the epoch, but for the offset and the last window."""
    windows, offsets = Windows.of(np.arange(103), 10, b""), set[int]()
    for epoch in range(100):
        order = windows.order(3, epoch)
        inputs, labels = windows.take(order, CPU)
        assert torch.equal(labels, inputs + 1)
        assert not torch.equal(order, order.sort().values)
        starts = inputs[:, 0].sort().values.tolist()
        assert starts == [min(starts[0] + 10 * number, 92) for number in range(10)]
        offsets.add(starts[0])
    assert offsets == set(range(10))
    # As when it is tested, and for any number of ranks that divide an order.
    assert windows.take(torch.arange(10), CPU)[0][:, 0].tolist() == list(range(0, 100, 10))
    halves = [windows.take(half, CPU)[0] for half in order.tensor_split(2)]
    assert torch.equal(torch.cat(halves), inputs)


def test_large_vocabularies_take_four_bytes(tmp_path: Path, packed: Path) -> None:
    content = json.loads((packed / "tokenizer.json").read_text())
    more = {f"<{n}>": 300 + n for n in range(70_000)}
    content["model"]["vocab"] |= more
    (tmp_path / "large.json").write_text(json.dumps(content))
    pack([tmp_path / "words.jsonl"], tmp_path / "large", tokenizer=tmp_path / "large.json")
    data, small = load_packed(tmp_path / "large", 16), load_packed(packed, 16)
    assert data.classes > 2**16
    assert json.loads((tmp_path / "large" / "tokens.json").read_text())["type"] == "uint32"
    assert stream(data) == stream(small)
    assert identity(data) != identity(small)


def cut(packed: Path) -> None:
    (packed / "train.bin").write_bytes((packed / "train.bin").read_bytes()[:-4])


def rewrite(name: str, content: str) -> Any:
    return lambda packed: (packed / name).write_text(content)


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (cut, "its manifest says"),
        (lambda packed: (packed / "test.bin").unlink(), "test.bin cannot be read"),
        (rewrite("tokens.json", "{"), "tokens.json is damaged"),
        (rewrite("tokens.json", '{"type": "uint16"}'), "tokens.json is damaged"),
        (rewrite("tokens.json", "[]"), "tokens.json is damaged"),
        (rewrite("tokenizer.json", "{}"), "tokenizer.json: it is not a tokenizer.json"),
        (lambda packed: (packed / "tokenizer.json").unlink(), "tokenizer.json cannot be read"),
    ],
)
def test_a_damaged_folder_is_named(packed: Path, harm: Any, told: str) -> None:
    harm(packed)
    with pytest.raises(DataError) as raised:
        load_packed(packed, 16)
    assert told in str(raised.value)
    assert str(packed) in str(raised.value)


def test_a_short_text_is_named(packed: Path) -> None:
    with pytest.raises(DataError, match=r"part to test has [\d,]+ tokens, and train.context 400"):
        load_packed(packed, 400)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KIT_CHECKPOINTS", str(tmp_path / "checkpoints"))
    return tmp_path / "checkpoints" / "tokens"


def tokens_of(root: Path, path: str, **more: Any) -> DataSet:
    keys = {"tokenizer": "bpe", "vocabulary": 300, "separator": None} | more
    return load_data(settings("text", "gpt", path=path, **keys), root)


def test_a_text_is_tokenized_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "a.txt").write_text(STORY * 40)
    first = identity(tokens_of(tmp_path, "words"))
    with monkeypatch.context() as patch:
        patch.setattr(tokens_loading, "pack", lambda *_, **__: pytest.fail("packed again"))
        assert identity(tokens_of(tmp_path, "words")) == first
    assert len(list(cache.glob("[!.]*"))) == 1
    (tmp_path / "words" / "b.txt").write_text(STORY)
    second = identity(tokens_of(tmp_path, "words"))
    assert second != first
    # The former tokens are gone, also those that an interrupted process left.
    (cache / ".tokens-x").mkdir()
    assert identity(tokens_of(tmp_path, "words", vocabulary=290)) != second
    assert [each.is_dir() for each in cache.iterdir() if each.name != ".lock"] == [True]


def test_a_trained_tokenizer_is_used(tmp_path: Path, packed: Path, cache: Path) -> None:
    (packed / "tokenizer.json").rename(tmp_path / "trained.json")
    made = tokens_of(tmp_path, "words.jsonl", tokenizer="trained.json", vocabulary=None)
    assert made.tokenizer == (tmp_path / "trained.json").read_text()


def test_a_packed_folder_needs_no_key(packed: Path) -> None:
    found = load_data(settings("text", "gpt", path="packed"), packed.parent)
    assert identity(found) == identity(load_packed(packed, 8))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"path": "packed"}, "packed has tokens instead of texts; leave out train.tokenizer"),
        ({"path": "none"}, "there is no text"),
        ({"path": "void"}, "void has no texts (.txt, .jsonl), and no tokens.json"),
        ({"path": "words.jsonl", "tokenizer": "no.json"}, "train.tokenizer: there is no file"),
    ],
)
def test_missing_texts_are_told_before_torch(
    packed: Path, changes: dict[str, Any], told: str
) -> None:
    (packed.parent / "void").mkdir()
    with pytest.raises(DataMissingError) as raised:
        find_files(settings("text", "gpt", **({"tokenizer": "bpe"} | changes)), packed.parent)
    assert told in str(raised.value)


def test_a_folder_of_characters_is_told(tmp_path: Path) -> None:
    (tmp_path / "words").mkdir()
    with pytest.raises(DataMissingError, match="is a folder; write `tokenizer: bpe`"):
        find_files(settings("text", "gpt", path="words"), tmp_path)


def test_a_missing_package_is_told(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(DataMissingError, match="or: pip install tokenizers"):
        find_files(settings("text", "gpt", path="packed"), packed.parent)


def model(positions: str, end: int | None, context: int = 24) -> GPT:
    size = Gpt(layers=2, heads=2, width=32, positions=positions, tied=False)
    made = GPT(size, 50, context, end=end)
    initialise(made, 3)
    for weight in made.parameters():  # Larger, so that attention matters.
        weight.data *= 3
    return made.eval()


@torch.no_grad()
def test_a_packed_document_is_computed_as_alone() -> None:
    gpt, draw = model("rotary", 0), torch.Generator().manual_seed(5)
    lengths = (5, 9, 1, 9)
    parts = [torch.randint(1, 50, (length,), generator=draw) for length in lengths]
    for part in parts[1:]:
        part[0] = 0  # The window begins in the middle of a document.
    whole = gpt(torch.cat(parts)[None])[0]
    place = 0
    for part in parts:
        alone = gpt(part[None])[0]
        torch.testing.assert_close(whole[:, place : place + len(part)], alone, atol=1e-4, rtol=1e-4)
        place += len(part)
    # Without the token that separates them, documents see those before.
    assert not torch.allclose(model("rotary", None)(torch.cat(parts)[None])[0], whole, atol=1e-2)


@torch.no_grad()
def test_learned_positions_are_those_in_the_window() -> None:
    gpt = model("learned", 0)
    part = torch.tensor([0, 7, 9, 11])
    packed = gpt(torch.cat([torch.arange(1, 9), part])[None])[0, :, 8:]
    other = gpt(torch.cat([torch.arange(11, 19), part])[None])[0, :, 8:]
    torch.testing.assert_close(packed, other)  # What is before does not matter; where it is does.
    assert not torch.allclose(packed, gpt(part[None])[0], atol=1e-2)


def test_gradients_do_not_cross_documents() -> None:
    gpt = model("rotary", 0)
    tokens = torch.tensor([[5, 6, 7, 0, 8, 9]])
    gpt(tokens)[0, :, 3:].sum().backward()
    assert gpt.embedding
    assert gpt.embedding.weight.grad is not None
    touched = gpt.embedding.weight.grad.abs().sum(dim=1).nonzero().flatten().tolist()
    assert touched == [0, 8, 9]


def test_recomputed_blocks_have_the_same_gradients() -> None:
    tokens, gradients = torch.tensor([[5, 6, 0, 8, 9]]), list[torch.Tensor]()
    for recompute in (False, True):
        gpt = model("rotary", 0).train()
        gpt.recompute = recompute
        gpt(tokens).square().sum().backward()
        gradients.append(
            torch.cat([each.grad.flatten() for each in gpt.parameters() if each.grad is not None])
        )
    assert torch.equal(*gradients)
