"""Loads NCCL, lets it read `NCCL_CONF_FILE` as it does in any training, and prints the variables named in argv.

NCCL sets in the process's environment what the file says, and needs no GPU for it.
"""

import ctypes
import json
import sys
from importlib.util import find_spec


def main():
    folder = next(iter(find_spec("nvidia.nccl").submodule_search_locations))
    nccl = ctypes.CDLL(f"{folder}/lib/libnccl.so.2")
    assert nccl.ncclGetUniqueId(ctypes.create_string_buffer(128)) == 0
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    values = {name: getenv(name.encode()) for name in sys.argv[1:]}
    sys.stdout.write(json.dumps({name: value and value.decode() for name, value in values.items()}) + "\n")


if __name__ == "__main__":
    main()
