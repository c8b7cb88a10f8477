"""Carries calls between roles, over TensorPipe: the only file that knows what does.

TensorPipe is maintained, but no longer developed. Whatever takes its place has to offer these three functions.
"""

import argparse
import sys
import warnings
from typing import Any

import torch
from torch.distributed import rpc
from torch.futures import Future

_served: Any = None


def connect(
    name: str, rank: int, members: int, store: str, options: argparse.Namespace, served: object
) -> None:
    """Join the other roles as `name`; what they call are methods of `served`."""
    global _served
    _served = served
    settings = {
        "num_worker_threads": options.rpc_threads,
        "rpc_timeout": options.timeout,
        "init_method": f"tcp://{store}",
    }
    if options.transport == "sockets":
        # Between network namespaces of one machine TensorPipe would take shared memory, and go past their links.
        settings |= {"_transports": ["uv"], "_channels": ["basic"]}
    try:
        backend = rpc.TensorPipeRpcBackendOptions(**settings)
    except TypeError as error:
        raise SystemExit(
            f"torch {torch.__version__} no longer lets TensorPipe's transports be chosen ({error}). Give --transport "
            "all, which is right on real machines and wrong on a testbed, because it goes past its links."
        ) from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rpc.init_rpc(name, rank=rank, world_size=members, rpc_backend_options=backend)


def call(to: str, method: str, *arguments: object) -> Future:
    """Call a method of what `to` serves; `wait()` for the answer, which raises what the method raised."""
    return rpc.rpc_async(to, _answer, args=(method, arguments))


def leave() -> None:
    """Wait until all roles leave."""
    try:
        rpc.shutdown()
    except RuntimeError as error:
        # All have finished. The first trainer, where they meet, does not wait for their last word, and a slow link may
        # bring it too late; whether that trainer failed is for its node to say.
        print(f"The last word to the first trainer came too late: {error}".splitlines()[0], file=sys.stderr)


@rpc.functions.async_execution
def _answer(method: str, arguments: tuple) -> Future:
    """Run in the called role. An answer may be a future, so that none that waits holds a thread."""
    found = getattr(_served, method)(*arguments)
    if isinstance(found, Future):
        return found
    done: Future = Future()
    done.set_result(found)
    return done
