"""Starts the servers and trainers of a PaddlePaddle parameter-server training on one machine, and ends the servers.

    python paddle_servers.py --servers 2 --trainers 2 -- python train.py --mode geo

Paddle 2.6.2's servers go on when all trainers have ended, and `fleetrun` waits for them without end. Here a training
ends with its trainers: well where all of them end well, else with the first fault of a trainer or a server.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
import time

SERVERS, TRAINERS = 1, 2
"""How many are started where the command does not say."""
VARIABLES: dict[str, str] = {}
"""What the trainers find in their environment besides their roles."""
ADDRESS = "127.0.0.1"
PATIENCE_S = 5
"""For the last lines of a process, which one that it started itself may keep open."""


def find_free_ports(count):
    """Return ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind((ADDRESS, 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def list_roles(servers, trainers):
    """Return the variables that tell each process its role, servers first: those that Paddle's own launcher sets."""
    meeting, *ports = find_free_ports(1 + servers + trainers)
    endpoints = [f"{ADDRESS}:{port}" for port in ports]
    shared = {
        "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(endpoints[:servers]),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints[servers:]),
        "PADDLE_TRAINERS_NUM": str(trainers),
        "POD_IP": ADDRESS,
        # Without it fleet's barriers do not wait, and trainers take parameters before the first one has given them.
        "PADDLE_WITH_GLOO": "1",
        "PADDLE_GLOO_RENDEZVOUS": "3",
        "PADDLE_GLOO_HTTP_ENDPOINT": f"{ADDRESS}:{meeting}",
    }
    roles = [("PSERVER", number) for number in range(servers)]
    roles += [("TRAINER", number) for number in range(trainers)]
    return [
        {**shared, "TRAINING_ROLE": role, "PADDLE_TRAINER_ID": str(number), "PADDLE_PORT": str(port)}
        for (role, number), port in zip(roles, ports, strict=True)
    ]


def wait_for_trainers(servers, trainers):
    """Return the exit code of the training: 0 when every trainer ended well, else that of the first fault."""
    while True:
        codes = [trainer.poll() for trainer in trainers]
        if fault := next((code for code in codes if code), 0):
            print(f"Trainer {codes.index(fault)} ended with exit code {fault}.", file=sys.stderr)
            return fault if fault > 0 else 128 - fault
        if None not in codes:
            return 0
        for number, server in enumerate(servers):
            if server.poll() is not None:
                print(f"Server {number} ended before the trainers did.", file=sys.stderr)
                return 1
        time.sleep(0.05)


def pass_on(lines):
    """Write whole lines: Paddle prints a line in parts, between which another process would come."""
    for line in lines:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()


def end(processes):
    """Kill every process that is still there: a server has nothing to lose, and Paddle calls a polite end an error."""
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()


def main():
    """Start one training; its exit code says how it ended."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--servers", type=int, default=SERVERS)
    parser.add_argument("--trainers", type=int, default=TRAINERS)
    parser.add_argument("command", nargs="+", help="the program of every role: python train.py")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    processes, outputs = [], []
    try:
        for role in list_roles(asked.servers, asked.trainers):
            variables = VARIABLES if role["TRAINING_ROLE"] == "TRAINER" else {}
            environment = {**variables, **os.environ, **role}
            processes.append(subprocess.Popen(asked.command, env=environment, stdout=subprocess.PIPE))
            outputs.append(threading.Thread(target=pass_on, args=(processes[-1].stdout,), daemon=True))
            outputs[-1].start()
        sys.exit(wait_for_trainers(processes[: asked.servers], processes[asked.servers :]))
    finally:
        end(processes)
        for output in outputs:
            output.join(PATIENCE_S)


if __name__ == "__main__":
    main()
