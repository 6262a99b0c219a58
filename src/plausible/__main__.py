"""`python -m plausible` is the command `plausible`."""

from .cli import app

if __name__ == "__main__":
    app(prog_name="plausible")
