"""Write the generated pages: `python -m docs.generate`, a part of `make examples`."""

from __future__ import annotations

from docs.generate.pages import ROOT, pages


def main() -> None:
    """Write each page that is not as it should be."""
    for path, text in pages().items():
        target = ROOT / path
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
            print(f"{path}: written")  # noqa: T201 (a script)


if __name__ == "__main__":
    main()
