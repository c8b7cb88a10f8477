"""The live stream: one word for every change, and an end."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from advisor.dashboard.live import Looks, stream_changes
from advisor.protocol.asked.jobs import JobState
from tests.samples.stored import Stories


def collect(stories: Stories, after: int, script: list[object], welcome: int = 50) -> list[str]:
    """Run the stream; each pause performs the next step of `script`."""
    steps = iter(script)
    asked = iter(range(welcome))

    async def pause(_: float) -> None:
        step = next(steps, None)
        if callable(step):
            step()

    async def is_welcome() -> bool:
        return next(asked, None) is not None

    async def read() -> list[str]:
        return [
            line
            async for line in stream_changes(Looks(stories.source, 0.0), "busy", after, is_welcome, pause)
        ]

    # In a thread of its own: a browser test of the same run may have left its event loop running in this one.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(read())).result()


def test_stream_tells_of_every_change_and_then_of_the_end(stories: Stories) -> None:
    def finish() -> None:
        story = stories.told["busy"]
        stories.tell(replace(story, job=story.job.model_copy(update={"state": JobState.FINISHED})))
        stories.happen("busy", "job", "Finished.")

    script = [lambda: stories.happen("busy", "trial", "Trial 11 began."), None, finish]
    lines = collect(stories, 5, script)
    assert lines == [
        "retry: 3000\n\n",
        "id: 6\nevent: changed\ndata: 6\n\n",
        "id: 7\nevent: changed\ndata: 7\n\n",
        "id: 7\nevent: ended\ndata: 7\n\n",
    ]


def test_stream_resumes_where_the_browser_was(stories: Stories) -> None:
    assert collect(stories, 3, [], welcome=1) == ["retry: 3000\n\n", "id: 5\nevent: changed\ndata: 5\n\n"]


def test_stream_ends_when_the_browser_is_gone(stories: Stories) -> None:
    lines = collect(stories, 5, [], welcome=20)
    assert lines == ["retry: 3000\n\n", ": still here\n\n"]


def test_stream_ends_when_the_job_is_gone(stories: Stories) -> None:
    assert collect(stories, 5, [lambda: stories.forget("busy")]) == ["retry: 3000\n\n"]
