"""The launcher in the trainer's image, and on a machine with kit: runs the package beside it.

    python3 launch.py [coordinator | rendezvous | health]    see trainer/launcher/__init__.py

Into images without the trainer, kit mounts one file of this name with the same modules.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from trainer.launcher.main import main

    sys.exit(main(sys.argv[1:]))
