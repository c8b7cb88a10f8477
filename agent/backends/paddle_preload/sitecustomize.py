"""Found by every Python that a Paddle launch starts, because this folder is on its PYTHONPATH: arms what measures.

Standard library only, Python 3.8 and newer. A sitecustomize that the environment has already is run first.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder

_HERE = os.path.dirname(os.path.abspath(__file__))


def _run_the_next_sitecustomize():
    rest = [folder for folder in sys.path if os.path.abspath(folder) != _HERE]
    spec = PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


class _AfterPaddle:
    """Arms the measuring once the script itself has imported paddle, and never before: an import takes seconds."""

    def find_spec(self, name, _path=None, _target=None):
        if name != "paddle":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_arm(module):
            execute(module)
            try:
                import fleet_advisor_paddle

                fleet_advisor_paddle.arm(module)
            except Exception as error:
                # Not measured is a sentence of the agent's; a broken training script would be our fault.
                sys.stderr.write(f"[advisor] Paddle cannot be measured: {type(error).__name__}: {error}\n")

        spec.loader.exec_module = execute_and_arm
        return spec


_run_the_next_sitecustomize()
if os.environ.get("ADVISOR_RESULTS"):
    sys.meta_path.insert(0, _AfterPaddle())
