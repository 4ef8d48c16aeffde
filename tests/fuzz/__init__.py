"""Inputs at random: every one gives a result or an error of fedstride's that says what is wrong; nothing else, in good time."""
