"""The program of the keeper, which copies a script's files: runs trainer/launcher/keeper/."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from trainer.launcher.keeper.main import main

    main()
