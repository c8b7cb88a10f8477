"""A recommender trained with parameter servers, over collectives, or both: an ordinary program with many options.

    cd examples/servers && python -m parameter_server --trainers 2 --servers 2 --steps 200

starts trainers and servers on this machine and prints one JSON line a step. On several nodes the same command runs on
each of them. Only `transport.py` knows what carries the messages.
"""
