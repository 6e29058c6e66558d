"""``python -m scope_lite`` is the command ``scope-lite``."""

from scope_lite.cli import app

if __name__ == "__main__":
    app(prog_name="scope-lite")
