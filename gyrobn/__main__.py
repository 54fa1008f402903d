"""``python -m gyrobn``, the same as the command ``gyrobn``."""

from gyrobn.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
