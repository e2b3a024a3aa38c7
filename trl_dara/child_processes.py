"""What a child process needs to import this package."""

import os
import sys
from pathlib import Path


def python_path() -> str:
    """
    `PYTHONPATH` for child processes that are started with `python -m`.

    These look in the working folder first. A folder `trl_dara` there, such as a clone of the repository, hides the package
    if that is installed in editable mode, through an import hook, which Python asks only after all folders of its path: the
    package's own parent must be one of them. A package comes before a folder without `__init__.py` wherever it is.

    Returns:
        `str`: that of this process, with the parent of the package where it is not on the path anyway.
    """
    parent = str(Path(__file__).parents[1])
    given = os.environ.get("PYTHONPATH", "")
    return given if parent in sys.path else os.pathsep.join(filter(None, [given, parent]))
