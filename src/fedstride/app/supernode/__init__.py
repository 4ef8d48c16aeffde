"""A Flower SuperNode with short rounds: it polls quickly while a run is active, and runs the app in one lasting process.

    python -P -m fedstride.app.supernode ...    # the arguments of flower-supernode

Flower's own SuperNode looks for messages every 3 s and starts a process for each, which imports torch and loads the data.
"""
