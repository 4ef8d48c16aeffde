"""python -m fedstride, as torchrun starts it."""

from fedstride.cli import app

app(prog_name="fedstride")
