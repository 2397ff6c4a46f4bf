"""`python -m meshwright` is the same as `meshwright`."""

from meshwright.cli import main

main()
