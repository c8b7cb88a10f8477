"""The files of docs/cluster/ give every node what the command there needs, and hold what the engines take.

What Kubernetes itself defines is checked by tests/conformance/test_cluster_files.py, which has its schemas.
"""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator, ValidationError

from advisor.cli.exits import Exit
from advisor.here.environments import find_place
from advisor.here.join import read_secret
from advisor.settings import Settings, find_exposure
from tests.samples.cluster_files import FOLDER, MANIFESTS, SECRET, Document, job_of, list_nodes, load

CRDS = json.loads((Path(__file__).parent / "crds.json").read_text())
GANGS = {"job": ["job"], "jobset": ["jobset"], "trainjob": ["runtime", "trainjob"]}
"""The manifests that start nodes, and what of them belongs together."""
SKY = yaml.safe_load((FOLDER / "tune.sky.yaml").read_text())
DSTACK = yaml.safe_load((FOLDER / "tune.dstack.yml").read_text())


def strictly(schema: Any) -> Any:
    """The schema, which takes no fields but those that it names."""
    if isinstance(schema, list):
        return [strictly(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: strictly(each) for name, each in schema.items()}
    return {**closed, "additionalProperties": False} if isinstance(closed.get("properties"), dict) else closed


def gang(name: str) -> list[Document]:
    return [document for part in GANGS[name] for document in load(part)]


def nodes_of(name: str) -> list[tuple[str, dict[str, str], list[str]]]:
    if name in GANGS:
        return list(list_nodes(gang(name)))
    ips = ["10.0.0.5", "10.0.0.6"]
    if name == "SkyPilot":
        secrets = dict.fromkeys(SKY["secrets"], SECRET)
        told = [
            {"SKYPILOT_NODE_RANK": str(rank), "SKYPILOT_NUM_NODES": str(SKY["num_nodes"]),
             "SKYPILOT_NODE_IPS": "\n".join(ips), "SKYPILOT_NUM_GPUS_PER_NODE": "8"}
            for rank in range(SKY["num_nodes"])
        ]  # fmt: skip
        command = SKY["run"].replace("$SKYPILOT_NUM_GPUS_PER_NODE", "8").replace("\\\n", "")
    else:
        secrets = {entry.partition("=")[0]: SECRET for entry in DSTACK["env"]}
        told = [
            {"DSTACK_NODE_RANK": str(rank), "DSTACK_NODES_NUM": str(DSTACK["nodes"]),
             "DSTACK_MASTER_NODE_IP": ips[0], "DSTACK_GPUS_PER_NODE": "8"}
            for rank in range(DSTACK["nodes"])
        ]  # fmt: skip
        command = DSTACK["commands"][0].replace("$DSTACK_GPUS_PER_NODE", "8")
    return [(ips[rank], {**values, **secrets}, shlex.split(command)) for rank, values in enumerate(told)]


ENGINES = {"job": "Kubernetes", "jobset": "Kubernetes", "trainjob": "Kubeflow Trainer", "SkyPilot": "SkyPilot",
           "dstack": "dstack"}  # fmt: skip


@pytest.mark.parametrize("name", ENGINES)
def test_every_node_learns_which_it_is_and_where_node_0_is(name: str) -> None:
    nodes = nodes_of(name)
    assert len(nodes) == 2
    for index, (_, values, _) in enumerate(nodes):
        place = find_place(values, {}, None, 0.0, lambda _: "")
        assert (place.engine, place.rank, place.count) == (ENGINES[name], index, len(nodes))
        assert place.head == nodes[0][0]
        assert read_secret(values) == SECRET


@pytest.mark.parametrize("name", ENGINES)
def test_command_of_each_file_is_one_that_the_program_takes(name: str, tmp_path: Path) -> None:
    _, values, words = nodes_of(name)[1]
    (tmp_path / "train.py").touch()
    assert words[:3] == ["advisor", "tune", "--here"]
    done = subprocess.run(
        [sys.executable, "-m", "advisor", "tune", "--prove", *words[2:]], cwd=tmp_path, text=True, check=False,
        env={**values, "HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(FOLDER.parents[1])},
        capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1 of 2" in done.stdout
    assert re.search(r"state +\S*/kept/advisor-tune-state", done.stdout)
    assert SECRET not in done.stdout


@pytest.mark.parametrize("name", GANGS)
def test_what_is_kept_lies_on_a_volume_that_all_nodes_see(name: str) -> None:
    pod = next(filter(None, map(job_of, gang(name))))["template"]["spec"]
    mounted = {mount["mountPath"]: mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    volume = next(each for each in pod["volumes"] if each["name"] == mounted["/kept"])
    (claim,) = load("volume")
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert DSTACK["volumes"][0].endswith(":/kept")


@pytest.mark.parametrize("name", GANGS)
def test_node_comes_back_after_any_end_but_the_commands_last_word(name: str) -> None:
    job = next(filter(None, map(job_of, gang(name))))
    ignored, last = job["podFailurePolicy"]["rules"]
    assert ignored["onPodConditions"][0]["type"] == "DisruptionTarget"
    killed, ended = 128 + 9, 128 + 15
    again = {Exit.INTERNAL, Exit.UNREACHABLE, Exit.INTERRUPTED, killed, ended}
    assert (last["action"], set(last["onExitCodes"]["values"])) == ("FailJob", again)
    assert job["template"]["spec"]["restartPolicy"] == "Never", "without which the policy counts for nothing"


def test_service_of_an_indexed_job_names_its_pods_before_they_are_ready() -> None:
    service, job = load("job")
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    assert service["metadata"]["name"] == job["spec"]["template"]["spec"]["subdomain"]
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)
    assert job["spec"]["completions"] == job["spec"]["parallelism"]


@pytest.mark.parametrize("version", [name for name in CRDS if name != "notice"])
def test_custom_resource_is_one_of_its_definition(version: str) -> None:
    validator = Draft202012Validator(strictly(CRDS[version]))
    found = [each for name in MANIFESTS for each in load(name) if each["kind"] == version.split()[0]]
    assert len(found) == 1
    validator.validate(found[0])
    with pytest.raises(ValidationError, match="misspelt"):
        validator.validate({**found[0], "spec": {**found[0]["spec"], "misspelt": 1}})


def test_train_job_takes_fifteen_lines_and_the_runtime_of_its_name() -> None:
    runtime, job = (load(name)[0] for name in GANGS["trainjob"])
    assert len((FOLDER / "kubernetes" / "trainjob.yaml").read_text().splitlines()) <= 15
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]


def test_no_file_holds_a_secret() -> None:
    texts = [path.read_text() for path in FOLDER.rglob("*") if path.is_file()]
    assert not [text for text in texts if re.search(r"^kind: Secret", text, re.M)]
    for document in (each for name in MANIFESTS for each in load(name)):
        for entry in _find(document, "env"):
            for variable in entry:
                if re.search("SECRET|PASSWORD|TOKEN", variable["name"]):
                    assert "secretKeyRef" in variable["valueFrom"]
    assert SKY["secrets"] == {"ADVISOR_JOIN_SECRET": None}
    assert DSTACK["env"] == ["ADVISOR_JOIN_SECRET=${{ secrets.advisor_join }}"]
    assert not [each for name in MANIFESTS for each in load(name) for url in _find(each, "value") if "@" in url
                and ":" in url.split("//")[-1].split("@")[0]]  # fmt: skip


def _find(value: Any, key: str) -> list[Any]:
    """All that stands under this key, at any depth."""
    if isinstance(value, list):
        return [found for each in value for found in _find(each, key)]
    if not isinstance(value, dict):
        return []
    return [each for name, each in value.items() if name == key] + [
        found for each in value.values() for found in _find(each, key)
    ]


def test_one_server_speaks_tls_where_its_agents_call_it_and_says_whether_it_is_ready() -> None:
    sets = {each["metadata"]["name"]: each for name in ("server", "agents") for each in load(name)
            if each["kind"] == "StatefulSet"}  # fmt: skip
    server, agent = (
        sets[name]["spec"]["template"]["spec"]["containers"][0]
        for name in ("advisor-server", "advisor-agent")
    )
    values = {each["name"]: each.get("value", "") for each in server["env"]}
    hosts = json.loads(values["ADVISOR_ALLOWED_HOSTS"])
    assert (
        find_exposure(Settings(host="0.0.0.0", tls_certificate=Path(values["ADVISOR_TLS_CERTIFICATE"]))) == ""
    )
    assert agent["command"][3] == f"https://{hosts[0]}:8765"
    assert [each["metadata"]["name"] for each in load("server") if each["kind"] == "Service"][1] == hosts[0]
    probe = server["readinessProbe"]["httpGet"]
    assert (probe["path"], probe["scheme"]) == ("/readyz", "HTTPS")
    assert probe["httpHeaders"] == [{"name": "Host", "value": "localhost"}], (
        "a pod's address is no allowed host"
    )
    assert sets["advisor-server"]["spec"]["replicas"] == 1, "a second server would be refused"
    (certificate,) = (
        source["secret"]["items"] for source in _find(sets["advisor-agent"], "sources")[0]
        if source["secret"]["name"] == "advisor-tls"
    )  # fmt: skip
    assert [item["key"] for item in certificate] == ["tls.crt"], "an agent never sees the server's key"


def test_no_script_of_the_teams_pods_can_read_the_token_that_lets_agents_in() -> None:
    (agents,) = (each for each in load("agents") if each["kind"] == "StatefulSet")
    pod = agents["spec"]["template"]["spec"]
    command = pod["containers"][0]["command"]
    assert command[command.index("--run-as") + 1] != "root"
    assert pod["securityContext"] == {"runAsUser": 0, "runAsGroup": 0}, "a group could read the token"
    (token,) = (
        item
        for source in _find(agents, "sources")[0]
        for item in source["secret"]["items"]
        if item["key"] == "agent-token"
    )
    assert token["mode"] == 0o400
    uses = re.search(r"token create --role agent --uses (\d+)", (FOLDER.parent / "cluster.md").read_text())
    assert uses is not None
    assert int(uses[1]) == agents["spec"]["replicas"]


@pytest.mark.parametrize(("name", "module"), [("server", "advisor"), ("agents", "agent")])
def test_command_of_the_teams_pods_uses_options_that_exist(name: str, module: str) -> None:
    ours = [words for each in load(name) for words in _find(each, "command") if "advisor" in words[0]]
    assert len(ours) == 1
    helped = subprocess.run(
        [sys.executable, "-m", module, ours[0][1], "--help"], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(FOLDER.parents[1]), "COLUMNS": "200", "NO_COLOR": "1", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    known = set(re.findall(r"--[a-z-]+", helped.stdout))
    assert {word for word in ours[0] if word.startswith("--")} <= known
