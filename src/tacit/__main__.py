"""``python -m tacit``: the ``tacit`` command where the script is not on the path."""

from tacit.cli import main

if __name__ == "__main__":
    main()
