"""`python -m promptdsi` is `promptdsi`."""

from __future__ import annotations

from promptdsi.cli.main import main

if __name__ == "__main__":
    main()
