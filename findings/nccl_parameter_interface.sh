#!/usr/bin/env bash
# nvidia-nccl-cu12 2.32.3, seen on 2026-11-28 without a GPU or a driver.
# NCCL's interface to its own parameters (nccl.h since 2.30) knows only those of its log: ncclParamGetAllParameterKeys
# names 7, and 10 with NCCL_PARAM_DUMP_ALL=true, of which the header says that it "will include all parameters".
# ncclParamGetParameter answers ncclInvalidArgument (4) for NCCL_ALGO, NCCL_BUFFSIZE, NCCL_IB_HCA as for a made-up name;
# the library's own text holds some 300 names that it reads.
# One would guess that it lists what the library reads, so that a tool need no list of its own.
# Why it matters: whether a variable was understood cannot be asked of the library yet; a typing error in one is silent.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet --no-deps nvidia-nccl-cu12==2.32.3
cat > "$home/ask.py" <<'PYTHON'
import ctypes
import glob
import sys

[path] = glob.glob(f"{sys.prefix}/lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2")
library = ctypes.CDLL(path)
names, count = ctypes.POINTER(ctypes.c_char_p)(), ctypes.c_int()
library.ncclParamGetAllParameterKeys(ctypes.byref(names), ctypes.byref(count))
listed = sorted(names[place].decode() for place in range(count.value))
text, size = ctypes.c_char_p(), ctypes.c_int()
asked = ("NCCL_DEBUG", "NCCL_ALGO", "NCCL_BUFFSIZE", "NCCL_IB_HCA", "NCCL_NO_SUCH_NAME")
codes = {
    name: library.ncclParamGetParameter(name.encode(), ctypes.byref(text), ctypes.byref(size)) for name in asked
}
print(len(listed), *listed)
print(codes)
sys.exit(not (len(listed) == int(sys.argv[1]) and list(codes.values()) == [0, 4, 4, 4, 4]))
PYTHON
changed=0
"$home/venv/bin/python" "$home/ask.py" 7 || changed=1
NCCL_PARAM_DUMP_ALL=true "$home/venv/bin/python" "$home/ask.py" 10 || changed=1
[ "$changed" = 0 ] && echo "as in 2026-11" || echo CHANGED
exit "$changed"
