"""`python -m meshwright` is the same as `meshwright`."""

from meshwright.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
