"""Ten engines' environments, as each sets them: which node this is, where node 0 is, and what is none of the user's."""

import pytest

from advisor.here.environments import NotANode, find_place, reset_added

ENVIRONMENTS = {
    "Slurm": {
        "SLURM_NODEID": "1", "SLURM_JOB_NUM_NODES": "4", "SLURM_STEP_NUM_NODES": "2", "SLURM_LOCALID": "0",
        "SLURM_STEP_NODELIST": "gpu[07-09,12],login1", "SLURM_JOB_NODELIST": "gpu[01-99]", "SLURMD_NODENAME": "gpu08",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_JOB_ID": "77", "SLURM_JOB_END_TIME": "1600",
    },
    "Kubeflow Trainer": {
        "PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "train-node-0-0.train", "PET_MASTER_PORT": "29500",
        "PET_NPROC_PER_NODE": "8", "JOB_COMPLETION_INDEX": "1",
    },
    "Kubernetes": {"JOB_COMPLETION_INDEX": "1", "ADVISOR_NODES": "2", "ADVISOR_HEAD": "tune-node-0-0.tune"},
    "Volcano": {
        "VC_TASK_INDEX": "1", "VK_TASK_INDEX": "1", "VC_WORKER_NUM": "2",
        "VC_WORKER_HOSTS": "t-worker-0.t,t-worker-1.t", "MASTER_ADDR": "t-worker-0.t", "RANK": "1", "WORLD_SIZE": "2",
    },
    "SkyPilot": {
        "SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_IPS": "10.0.0.5\n10.0.0.6",
        "SKYPILOT_TASK_ID": "sky-7",
    },
    "dstack": {"DSTACK_NODE_RANK": "1", "DSTACK_NODES_NUM": "2", "DSTACK_MASTER_NODE_IP": "10.0.0.5"},
    "SageMaker": {"SM_HOSTS": '["algo-2", "algo-1"]', "SM_CURRENT_HOST": "algo-2"},
    "Open MPI": {
        "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_MCA_orte_bound_at_launch": "1", "PMIX_RANK": "2",
    },
    "MPI": {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"},
    "by hand": {"ADVISOR_NODE_RANK": "1", "ADVISOR_NODES": "2", "ADVISOR_HEAD": "n1", "RAY_JOB_ID": "01"},
}  # fmt: skip
HEADS = {
    "Slurm": "gpu07", "Kubeflow Trainer": "train-node-0-0.train", "Kubernetes": "tune-node-0-0.tune",
    "Volcano": "t-worker-0.t", "SkyPilot": "10.0.0.5", "dstack": "10.0.0.5", "SageMaker": "algo-1", "by hand": "n1",
}  # fmt: skip


def say_nothing(_: str) -> str:
    return ""


@pytest.mark.parametrize("engine", ENVIRONMENTS)
def test_each_engine_says_which_node_this_is(engine: str) -> None:
    place = find_place(ENVIRONMENTS[engine], {}, None, 1000.0, say_nothing)
    assert (place.engine, place.rank, place.count) == (engine, 1, 2)
    assert place.head == HEADS.get(engine, "")
    assert place.name.endswith("-1")


def test_slurm_says_when_its_allocation_ends_and_how_the_node_is_called() -> None:
    place = find_place(ENVIRONMENTS["Slurm"], {}, None, 1000.0, say_nothing)
    assert (place.ends_in_s, place.name, place.allocation) == (600, "gpu08-1", "77")
    assert place.sources["head"] == "the first of SLURM_STEP_NODELIST"
    assert find_place(ENVIRONMENTS["Slurm"], {}, "2m", 1000.0, say_nothing).ends_in_s == 120


def test_what_is_typed_wins_over_what_an_engine_says() -> None:
    typed = {"--node-rank": "0", "--nodes": "3", "--head": "here"}
    place = find_place(ENVIRONMENTS["Slurm"], typed, None, 1000.0, say_nothing)
    assert (place.engine, place.rank, place.count, place.head) == ("by hand", 0, 3, "here")


def test_second_task_of_a_node_knows_that_it_is() -> None:
    second = ENVIRONMENTS["Open MPI"] | {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
    place = find_place(second, {}, None, 0.0, say_nothing)
    assert (place.rank, place.task, place.tasks) == (1, 1, 2)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, "No engine says which node this is"),
        ({"JOB_COMPLETION_INDEX": "0"}, "Kubernetes says which node this is and not of how many"),
        ({"ADVISOR_NODE_RANK": "2", "ADVISOR_NODES": "2"}, "nodes are counted from 0"),
        ({"ADVISOR_NODE_RANK": "first", "ADVISOR_NODES": "2"}, "ADVISOR_NODE_RANK is 'first'"),
        (ENVIRONMENTS["Open MPI"] | {"OMPI_COMM_WORLD_RANK": "1"}, "not dealt to the nodes one node after the other"),
    ],
)  # fmt: skip
def test_what_is_no_node_is_refused_by_a_sentence(values: dict[str, str], told: str) -> None:
    with pytest.raises(NotANode, match=told):
        find_place(values, {}, None, 0.0, say_nothing)


@pytest.mark.parametrize(
    ("engine", "removed", "kept"),
    [
        ("Kubeflow Trainer", {"PET_NNODES", "PET_MASTER_ADDR"}, {"PET_NPROC_PER_NODE"}),
        ("Open MPI", {"OMPI_COMM_WORLD_RANK", "PMIX_RANK"}, set()),
        ("Volcano", {"RANK", "MASTER_ADDR"}, {"VC_WORKER_HOSTS"}),
        ("by hand", {"RAY_JOB_ID"}, {"ADVISOR_NODES"}),
        ("Slurm", set(), {"SLURM_JOB_ID", "OMP_NUM_THREADS"}),
    ],
)
def test_what_an_engine_added_for_itself_is_taken_back_and_said(
    engine: str, removed: set[str], kept: set[str]
) -> None:
    own, said = reset_added(ENVIRONMENTS[engine] | {"OMP_NUM_THREADS": "1", "HOME": "/root"})
    assert not removed & own.keys()
    assert kept | {"HOME"} <= own.keys()
    assert bool(said) == bool(removed)


def test_rays_single_thread_is_no_users_baseline() -> None:
    own, said = reset_added({"RAY_RAYLET_PID": "9", "OMP_NUM_THREADS": "1"})
    assert own == {}
    assert "OMP_NUM_THREADS=1" in said[0]
