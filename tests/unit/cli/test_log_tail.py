"""A failed script's log shows the script's own frames."""

from advisor.cli.views.log_tail import shorten_log

LOG = """\
[rank 0] epoch 1
[rank 0] Traceback (most recent call last):
[rank 0]   File "<frozen runpy>", line 198, in _run_module_as_main
[rank 0]   File "/opt/lib/agent/runtime/__main__.py", line 41, in <module>
[rank 0]     main()
[rank 0]     ~~~~^^
[rank 0]   File "/home/ada/train.py", line 7, in <module>
[rank 0]     loss = 1 / 0
[rank 0]            ~~^~~
[rank 0] ZeroDivisionError: division by zero
Traceback (most recent call last):
  File "/opt/env/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "/opt/env/lib/torch/distributed/launcher/api.py", line 291, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""


def test_frames_of_what_starts_the_script_are_left_out() -> None:
    assert shorten_log(LOG).splitlines() == [
        "[rank 0] epoch 1",
        "[rank 0] Traceback (most recent call last):",
        '[rank 0]   File "/home/ada/train.py", line 7, in <module>',
        "[rank 0]     loss = 1 / 0",
        "[rank 0]            ~~^~~",
        "[rank 0] ZeroDivisionError: division by zero",
        "Traceback (most recent call last):",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
    ]


def test_other_lines_stay_and_the_last_twenty_are_shown() -> None:
    lines = [f"step {number}" for number in range(50)]
    assert shorten_log("\n".join(lines)).splitlines() == lines[-20:]
    assert shorten_log("") == ""
