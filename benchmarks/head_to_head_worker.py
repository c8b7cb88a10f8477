"""One worker of `head_to_head.py`: does what it is told on standard input, a JSON object a line, and answers likewise.

It runs in the Python that has what it speaks to: this service's agent, Optuna or Vizier. `move` names another study,
`ask` begins a trial, `tell` hands its value in, `again` hands it in once more, `adopt` takes over a trial that another
worker began. A call that fails is repeated, as a careful user would do; what is refused is not.

    python head_to_head_worker.py <kind> <url> <study> <name> <folder>
"""

import json
import queue
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATIENCE_S = 300.0
"""Whoever gives the orders gives up earlier."""
HEARTBEAT_S, GRACE_S = 1, 2
"""Of Optuna; whole seconds. A worker is paused for longer than both together."""


@dataclass(frozen=True)
class Duty:
    """Whom a worker serves, and as who."""

    kind: str
    url: str
    study: str
    name: str
    folder: Path


class Refused(Exception):
    """The service has said that it does not take this value."""


def insist(call: Callable[[], Any]) -> Any:
    """Call until it succeeds or is refused; raises TimeoutError when it does neither."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call()
        except Refused:
            raise
        except Exception as error:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{type(error).__name__}: {error}"[:300]) from error
            time.sleep(0.2)


class OptunaWorker:
    """`study.optimize` with the heartbeat and its retries where the storage has them, as the documentation advises."""

    def __init__(self, duty: Duty) -> None:
        import warnings

        import optuna

        warnings.simplefilter("ignore")
        optuna.logging.set_verbosity(optuna.logging.CRITICAL)
        self.optuna = optuna
        self.storage: Any
        if duty.kind == "optuna-grpc":
            host, _, port = duty.url.partition(":")
            self.storage = optuna.storages.GrpcStorageProxy(host=host, port=int(port))
        else:
            self.storage = optuna.storages.RDBStorage(
                duty.url,
                engine_kwargs={"connect_args": {"timeout": 20}}
                if duty.url.startswith("sqlite")
                else {"pool_pre_ping": True},
                heartbeat_interval=HEARTBEAT_S,
                grace_period=GRACE_S,
                heartbeat_stale_trial_callback=optuna.storages.RetryHeartbeatStaleTrialCallback(max_retry=3),
            )
        self.move(duty.study)
        self.begun: queue.Queue[Any] = queue.Queue()
        self.values: queue.Queue[float] = queue.Queue()
        self.ended: queue.Queue[Exception | None] = queue.Queue()
        self.number = -1

    def move(self, study: str) -> None:
        """Serve another study."""
        self.study = insist(
            lambda: self.optuna.create_study(
                study_name=study, storage=self.storage, load_if_exists=True,
                sampler=self.optuna.samplers.RandomSampler(), direction="maximize",
            )
        )  # fmt: skip

    def ask(self) -> Any:
        """Start one optimisation step in a thread; return its trial's number once the objective is called."""

        def objective(trial: Any) -> float:
            trial.suggest_float("x", 0, 1)
            self.begun.put(trial.number)
            return self.values.get()

        def optimise() -> None:
            try:
                self.study.optimize(objective, n_trials=1)
                self.ended.put(None)
            except Exception as error:
                self.begun.put(error)
                self.ended.put(error)

        def begin() -> int:
            self.begun, self.values, self.ended = queue.Queue(), queue.Queue(), queue.Queue()
            threading.Thread(target=optimise, daemon=True).start()
            got = self.begun.get()
            if isinstance(got, Exception):
                raise got
            return int(got)

        self.number = insist(begin)
        return self.number

    def tell(self, value: float) -> None:
        """Let the objective return; where the optimisation dies of it, tell the value by hand."""
        self.values.put(value)
        error = self.ended.get()
        if error is not None:
            self._refuse_or_pass(error)
            self.again(value)

    def again(self, value: float) -> None:
        """Tell the value, also if it was told before."""

        def tell() -> None:
            try:
                self.study.tell(self.number, value)
            except Exception as error:
                self._refuse_or_pass(error)
                raise

        insist(tell)

    def adopt(self, trial: Any) -> None:
        """Speak about another worker's trial."""
        self.number = int(trial)

    def dump(self) -> list[tuple[str, list[float], bool]]:
        """Every trial: its number, its values, and whether it counts as being measured."""
        trials = self.study.get_trials(deepcopy=False)
        return [(str(t.number), t.values or [], t.state.name == "RUNNING") for t in trials]

    def _refuse_or_pass(self, error: Exception) -> None:
        finished = isinstance(error, self.optuna.exceptions.UpdateFinishedTrialError)
        if finished or (isinstance(error, ValueError) and "Cannot tell" in str(error)):
            raise Refused(str(error)) from error


class VizierWorker:
    """A client with a stable id: one that comes back is given its own trial again, as the documentation says."""

    def __init__(self, duty: Duty) -> None:
        import logging

        from vizier.service import clients
        from vizier.service import pyvizier as vz

        logging.disable(logging.CRITICAL)
        clients.environment_variables.server_endpoint = duty.url
        self.vz, self.name = vz, duty.name
        self.clients = clients
        self.move(duty.study)
        self.trial: Any = None

    def move(self, study: str) -> None:
        """Serve another study."""
        config = self.vz.StudyConfig(algorithm="RANDOM_SEARCH")
        config.search_space.root.add_float_param("x", 0, 1)
        goal = self.vz.ObjectiveMetricGoal.MAXIMIZE
        config.metric_information.append(self.vz.MetricInformation(name="v", goal=goal))
        self.study = insist(lambda: self.clients.Study.from_study_config(config, owner="h2h", study_id=study))

    def ask(self) -> Any:
        """Ask for a suggestion."""
        self.trial = insist(lambda: self.study.suggest(count=1, client_id=self.name)[0])
        return self.trial.id

    def tell(self, value: float) -> None:
        """Complete the trial."""

        def complete() -> None:
            try:
                self.trial.complete(self.vz.Measurement({"v": value}))
            except Exception as error:
                text = str(error)
                if "immutable" in text.lower() or "FAILED_PRECONDITION" in text or "COMPLETED" in text:
                    raise Refused(text) from error
                raise

        insist(complete)

    again = tell

    def dump(self) -> list[tuple[str, list[float], bool]]:
        """Every trial: its id, its values, and whether it counts as being measured."""
        found = []
        for trial in self.study.trials():
            known = trial.materialize()
            final = known.final_measurement
            values = [final.metrics["v"].value] if final is not None else []
            found.append((str(known.id), values, known.status.name == "ACTIVE"))
        return found

    def adopt(self, trial: Any) -> None:
        """Speak about another worker's trial."""
        self.trial = insist(lambda: self.study.get_trial(int(trial)))


class AdvisorWorker:
    """This service's agent: its own client, spool and delivery; only the training is made up."""

    def __init__(self, duty: Duty) -> None:
        sys.path.insert(0, str(Path(__file__).parents[1]))
        from advisor.protocol.measured import messages
        from advisor.protocol.nodes.cluster import Node
        from agent import errors
        from agent.client import ServerClient
        from agent.sessions.delivery import Delivery
        from agent.sessions.spool import Spool, SpooledReport

        self.messages, self.errors, self.spooled = messages, errors, SpooledReport
        self.result = json.loads((duty.folder / "result.json").read_text())
        self.facts = json.loads((duty.folder / "facts.json").read_text())
        self.client = ServerClient(duty.url, (duty.folder / "agent-token").read_text().strip())
        work_dir = duty.folder / "workers" / duty.name
        work_dir.mkdir(parents=True, exist_ok=True)
        self.delivery = Delivery(self.client, Spool(work_dir), time.monotonic)
        register = messages.RegisterAgent(
            name=duty.name,
            node=Node(hostname=duty.name, cpu_count=2, memory_bytes=2**34),
            secret=(duty.name * 64)[:64],
        )
        self.id = insist(lambda: self.client.register(register, lambda: True)).agent_id
        insist(self.delivery.hand_in_waiting)  # as an agent does that comes back
        self.place: Any = None
        self.race: Any = None
        self.state = ""
        self.busy = threading.Lock()
        threading.Thread(target=self._keep_alive, daemon=True).start()

    def move(self, study: str) -> None:
        """Leave the session that is held: the next job is of another study, or of none."""
        del study
        with self.busy:
            if self.place is not None:
                with suppress(self.errors.AgentError):
                    self._end()
            self.place = None

    def ask(self) -> Any:
        """Take a place where none is held, and ask for the next race."""
        self.race = insist(self._next)
        return {
            "session": self.place.session_id, "generation": self.place.generation, "token": self.client._token,
            "agent": self.id, "race": self.race.model_dump(mode="json"),
        }  # fmt: skip

    def tell(self, value: float) -> None:
        """Write the report down, and hand it in until the server decides."""
        results = {}
        for arm in self.race.arms:
            results[arm.block_id] = self.result | {"switch_s": value}
        body = {"generation": self.place.generation, "results": results}
        spooled = self.spooled(
            session_id=self.place.session_id,
            race_id=self.race.arms[0].block_id,
            body=json.dumps(body),
        )
        entry = self.delivery._spool.put(spooled)
        deadline = time.monotonic() + PATIENCE_S
        try:
            self.delivery._hand_in(entry, lambda: time.monotonic() > deadline)
        except self.errors.ServerRefused as error:
            raise Refused(str(error)) from error

    again = tell

    def adopt(self, trial: Any) -> None:
        """Speak about another worker's race, with its token."""
        from advisor.protocol.measured.trials import RacePlan

        self.client._token = trial["token"]
        self.race = RacePlan.model_validate(trial["race"])

        class Place:
            session_id, generation = trial["session"], trial["generation"]

        self.place = Place

    def _next(self) -> Any:
        for _ in range(1000):
            with self.busy:
                if self.place is None or self.state not in {"assembling", "running"}:
                    self.place = self.client.poll(self.id, 1.0, lambda: True).assignment
                    self.state = "assembling"
                if self.place is None:
                    continue
                try:
                    self._beat()
                    if self.state != "running":
                        time.sleep(0.02)
                        continue
                    generation = self.place.generation
                    hello = self.messages.HelloReport(
                        generation=generation,
                        facts=self.facts,
                        baseline={"fuse_grad_size_in_MB": 25.0},
                    )
                    self.client.hello(self.place.session_id, hello, lambda: True)
                    reply = self.client.next_race(
                        self.place.session_id, self.messages.NextRequest(generation=generation), lambda: True
                    )
                    if reply.race is not None:
                        return reply.race
                    self._end()
                    self.place = None
                except self.errors.StaleSession:
                    self.place = None
        raise RuntimeError("no work")

    def _end(self) -> None:
        end = self.messages.SessionEnd(
            generation=self.place.generation, outcome="finished", reason="Asked to end."
        )
        self.client.end(self.place.session_id, end, lambda: True)

    def _beat(self) -> None:
        beat = self.messages.Beat(generation=self.place.generation, state="ready", rendezvous="127.0.0.1:1")
        self.state = str(self.client.beat(self.place.session_id, beat, 5.0).state)

    def _keep_alive(self) -> None:
        while True:
            time.sleep(0.4)
            with self.busy:
                try:
                    if self.place is not None and self.state == "running":
                        self._beat()
                except self.errors.StaleSession:
                    self.state = "stale"
                except Exception:
                    continue


WORKERS = {"advisor": AdvisorWorker, "optuna": OptunaWorker, "vizier": VizierWorker}


def main() -> None:
    """Obey."""
    kind, url, study, name, folder = sys.argv[1:]
    worker: Any = WORKERS[kind.partition("-")[0]](Duty(kind, url, study, name, Path(folder)))
    print(json.dumps({"ok": "ready"}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            done = getattr(worker, order["do"])(*order.get("with", ()))
            print(json.dumps({"ok": done}), flush=True)
        except Refused as error:
            print(json.dumps({"refused": str(error)[:300]}), flush=True)
        except Exception as error:
            print(json.dumps({"failed": f"{type(error).__name__}: {error}"[:300]}), flush=True)


if __name__ == "__main__":
    main()
