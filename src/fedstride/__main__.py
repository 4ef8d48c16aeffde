"""python -m fedstride, as torchrun starts it."""

from fedstride.app.cli import app

app(prog_name="fedstride")
