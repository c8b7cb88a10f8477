"""Prints what torch finds on this machine, as one line of JSON."""

import importlib.util
import json

import torch


def main() -> None:
    with_cards = torch.cuda.is_available()
    found = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if with_cards else "",
        "cudnn": str(torch.backends.cudnn.version() or "") if with_cards else "",
        "cards": [
            torch.cuda.get_device_name(index)
            for index in range(torch.cuda.device_count() if with_cards else 0)
        ],
        "transformers": importlib.util.find_spec("transformers") is not None,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
