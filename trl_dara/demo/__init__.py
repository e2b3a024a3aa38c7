"""The demo: a tiny transformer learns to call tools under several rules, side by side on two CPU cores."""
