"""`python -m lldscope` is `lldscope`."""

from .cli import main

if __name__ == "__main__":
    main()
