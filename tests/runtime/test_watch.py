"""`kit status --watch` for hours: what fails for a moment does not end it."""

import pytest
from rich.text import Text

from kit.commands import status
from kit.errors import KitError


@pytest.mark.parametrize("terminal", [True, False])
def test_a_look_that_fails_is_tried_again(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = iter(["one", KitError("n2: no route to host", ""), "three"])

    def look() -> object:
        found = next(looks, None)
        if found is None:
            raise KeyboardInterrupt
        if isinstance(found, KitError):
            raise found
        return iter([Text(str(found))])

    monkeypatch.setattr(status, "INTERVAL", 0.0)
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")
    with pytest.raises(KeyboardInterrupt):
        status._watch(look)  # type: ignore[arg-type]
    printed = capsys.readouterr().out
    assert "cannot be read now, what is above is older: n2: no route" in printed
    assert printed.index("one") < printed.index("no route") < printed.index("three")


def test_the_first_look_that_fails_ends_it() -> None:
    def look() -> object:
        raise KitError("cluster is not known", "")

    with pytest.raises(KitError):
        status._watch(look)  # type: ignore[arg-type]
