"""The guide of the Python client as a notebook, made from its page: text between cells, code in them."""

import json
import re
from pathlib import Path

GUIDE = Path(__file__).parent / "python-client.md"
_CELL = re.compile(r"^```python\n(.*?)^```\n", re.M | re.S)
_IN_A_PROGRAM = "# In a notebook: await look()\nasyncio.run(look())"


def make_notebook() -> str:
    """Return `docs/python-client.ipynb`, in notebook format 4.5. A notebook has a loop of its own to wait in."""
    text = (
        GUIDE.read_text()
        .replace(_IN_A_PROGRAM, "await look()")
        .replace("[a notebook](python-client.ipynb)", "a notebook")
    )
    cells = []
    # Text and code take turns, and the text comes first.
    for number, part in enumerate(_CELL.split(text)):
        if not part.strip():
            continue
        cell: dict[str, object] = {"id": f"cell-{number}", "metadata": {}}
        cell["source"] = part.strip().splitlines(keepends=True)
        is_code = number % 2
        cell["cell_type"] = "code" if is_code else "markdown"
        cells.append(cell | ({"execution_count": None, "outputs": []} if is_code else {}))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
