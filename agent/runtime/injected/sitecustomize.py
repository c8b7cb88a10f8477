"""Runs at the start of every Python process below a command that starts its ranks itself; this folder is on PYTHONPATH.

It watches for the process to become a rank, then makes room for the `sitecustomize` that the user's environment has
already. Whatever fails here, the process goes on. Readable by every Python 3.
"""

import contextlib
import importlib.machinery
import importlib.util
import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def _watch():
    try:
        # The folder above may lie in an archive, whose loader before Python 3.10 has no exec_module.
        loader = importlib.machinery.PathFinder.find_spec("launch", [os.path.dirname(_FOLDER)]).loader
        launch = {"__name__": "launch", "__file__": loader.get_filename("launch")}
        exec(loader.get_code("launch"), launch)
        launch["watch"]()
    except Exception as error:
        with contextlib.suppress(Exception):  # closed, full, or none at all
            sys.stderr.write("fleet advisor: this process is not measured: %r\n" % (error,))


def _run_next():
    """Be replaced by the next sitecustomize on the path, or look as if there were none."""
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != _FOLDER]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        raise ImportError("There is no other sitecustomize.", name="sitecustomize")
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if (os.environ.get("ADVISOR_TUNING") or os.environ.get("ADVISOR_RUN")) and sys.version_info >= (3, 9):
    _watch()
_run_next()
