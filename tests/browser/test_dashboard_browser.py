"""The dashboard in a real Chromium: it draws, follows, copies, and works without scripts."""

import os
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from advisor.protocol.asked.jobs import JobState
from tests.samples.evidence import leave_undecided
from tests.samples.job import make_finished_story
from tests.samples.stored import NOW

from .conftest import await_fit

pytestmark = pytest.mark.browser

SHOTS = os.environ.get("SCREENSHOTS", "")
"""A folder for pictures of every page (`make screenshots`); without it none are taken."""

LOOKS = ((360, "light"), (1440, "dark"), (360, "dark"), (1440, "light"))
"""Width and theme. A theme changes no place and a width no colour: the first two meet each once."""
BETWEEN = 768
"""Pages of the greatest width are made that narrow, too: between the widths the same parts are shown."""
PAGES = (
    "/jobs", "/jobs/busy", "/jobs/sample", "/jobs/sample/trials/5", "/jobs/sample/trials/6", "/jobs/busy/trials/10",
    "/jobs/busy/log", "/jobs/sample/export", "/jobs/busy/export", "/agents", "/knobs", "/jobs/sample/trials",
    "/jobs/busy/trials?sort=-samples&state=ok", "/jobs/sample/compare?trials=0,3,5,7", "/jobs/sample/explore",
    "/jobs/busy/explore", "/jobs/new", "/compare?jobs=sample,busy",
    "/jobs/sample/what-if?nodes=8&rate=25gbit&batch=x", "/jobs/sample/what-if?nodes=8&rate=25gbit",
    "/jobs/busy/what-if", "/jobs/sample/log", "/jobs/sample/trials/10",
)  # fmt: skip


OPEN_EVERYTHING = "for (const part of document.querySelectorAll('details')) part.open = true"


def list_barriers(page: Page) -> list[str]:
    """What axe-core finds serious or critical on the page, with everything unfolded: rule and element.

    It is evaluated through the DevTools protocol, which the page's content policy does not concern.
    """
    page.evaluate(OPEN_EVERYTHING)
    violations = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    return [
        f"{found['id']}: {node['html'][:200]} {[item['message'] for item in node['any'] + node['all']]}"
        for found in violations
        if found["impact"] in {"serious", "critical"}
        for node in found["nodes"]
    ]


@pytest.mark.parametrize(("width", "theme"), LOOKS if SHOTS else LOOKS[:2])
def test_every_page_fits_renders_without_a_complaint_and_never_leaves_the_server(
    visit: Callable, theme: str, width: int
) -> None:
    visitor = visit(color_scheme=theme, viewport={"width": width, "height": 800}).sign_in()
    barriers: list[str] = list_barriers(visit(color_scheme=theme).go("/login"))
    for path in PAGES:
        page = visitor.go(path)
        expect(page.locator("h1").first).to_be_visible()
        # A folded figure is drawn when it is unfolded.
        page.evaluate("for (const part of document.querySelectorAll('details:has(figure)')) part.open = true")
        for plot in page.locator(".plot").all():
            expect(plot.locator(".main-svg").first).to_be_attached()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        if width > BETWEEN:
            page.set_viewport_size({"width": BETWEEN, "height": 800})
            await_fit(page, BETWEEN)
            page.set_viewport_size({"width": width, "height": 800})
        assert (
            page.locator("[role=img]:not([aria-label]), img:not([alt]), figure:not(:has(table))").count() == 0
        )
        if SHOTS:
            name = re.sub(r"\W+", "-", path).strip("-")
            page.screenshot(path=f"{SHOTS}/{name}.{theme}-{width}.png", full_page=True)
        barriers += [f"{path} {barrier}" for barrier in list_barriers(page)]
    assert not barriers, "\n".join(barriers)
    assert visitor.complaints == []
    assert visitor.failures == []
    assert visitor.strangers == []


@pytest.mark.parametrize(("width", "theme"), LOOKS if SHOTS else LOOKS[:2])
def test_pages_of_administrators_fit_with_their_forms_open_and_work(
    visit: Callable, theme: str, width: int
) -> None:
    visitor = visit(color_scheme=theme, viewport={"width": width, "height": 800}).sign_in("adv_admin_1_x")
    page = visitor.go("/tokens")
    page.locator("#label").fill("ada")
    page.get_by_role("button", name="Make the token").click()
    expect(page.locator("#secret")).to_contain_text("adv_submitter_")
    page.locator("summary", has_text="Rotate or revoke").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    if SHOTS:
        page.screenshot(path=f"{SHOTS}/tokens.{theme}-{width}.png", full_page=True)
    visitor.go("/tokens")
    expect(page.locator("#secret")).to_have_count(0)
    visitor.go("/agents")
    page.locator("summary", has_text="Drain").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert not list_barriers(page)
    if SHOTS:
        page.screenshot(path=f"{SHOTS}/agents-admin.{theme}-{width}.png", full_page=True)
    page.get_by_role("button", name=re.compile("^Drain ")).first.click()
    expect(page.locator("#agents")).to_contain_text("Drained by ")
    assert visitor.complaints == []
    assert visitor.failures == []
    assert visitor.strangers == []


def test_pages_say_everything_without_scripts(visit: Callable) -> None:
    visitor = visit(java_script_enabled=False).sign_in()
    page = visitor.go("/jobs/sample")
    expect(page.get_by_text("+16.1 %").first).to_be_visible()
    expect(page.locator(".plot").first).to_be_hidden()
    page.locator("#fig-waterfall summary").click()
    expect(page.locator("#fig-waterfall td", has_text="−21.1")).to_be_visible()
    page.locator(".tabs").get_by_role("link", name="Export").click()
    page.get_by_label("Format", exact=True).select_option("paddle")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("heading", name="strategy.prototxt")).to_be_visible()
    page.get_by_role("button", name="Dark theme").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()


def test_wrong_token_is_explained(visit: Callable) -> None:
    visitor = visit()
    page = visitor.go("/login")
    page.get_by_label("Token").fill("adv_viewer_9_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("No person has this token.")


def test_job_page_follows_its_job_to_the_end(visit: Callable, site: object) -> None:
    visitor = visit().sign_in()
    page = visitor.go("/jobs/busy/log")
    page.locator("#failures summary").first.click()
    site.stories.happen("busy", "trial", "Trial 11 began: a neighbour of trial 5.")
    expect(page.locator("#events")).to_contain_text("Trial 11 began")
    expect(page.locator("#failures .log").first).to_be_visible()
    page.get_by_role("link", name="Overview").click()
    expect(page.locator("#verdict")).to_contain_text("Measuring")
    site.stories.happen("busy", "trial", "Trial 12 began: another neighbour.")
    expect(page.locator("#latest")).to_contain_text("Trial 12 began")

    finished = make_finished_story(NOW)
    events = site.stories.told["busy"].events
    site.stories.tell(replace(finished, job=finished.job.model_copy(update={"id": "busy"}), events=events))
    site.stories.happen("busy", "job", "Finished: +16.1 % throughput.")
    expect(page.locator("#verdict")).to_contain_text("+16.1 %")
    expect(page.locator("#fig-waterfall .main-svg").first).to_be_attached()
    expect(page.locator("#job-head").get_by_role("link", name="Export")).to_be_visible()
    assert visitor.complaints == []


def test_trials_are_chosen_while_others_arrive_and_then_compared(visit: Callable, site: object) -> None:
    visitor = visit().sign_in()
    page = visitor.go("/jobs/busy/trials?sort=-samples")
    expect(page.locator("tbody tr").first).to_contain_text("localsgd")
    for number in (0, 5):
        page.get_by_role("checkbox", name=f"Compare trial {number}", exact=True).check()
    story = site.stories.told["busy"]
    trial = story.history.trials[-1].model_copy(update={"number": 11})
    trials = (*story.history.trials, trial)
    site.stories.tell(replace(story, history=story.history.model_copy(update={"trials": trials})))
    site.stories.happen("busy", "trial", "Trial 11 began.")
    expect(page.locator("tbody tr")).to_have_count(12)
    expect(page.get_by_role("checkbox", name="Compare trial 5", exact=True)).to_be_checked()
    page.get_by_role("button", name="Compare ticked").click()
    expect(page.get_by_role("heading", name="Side by side")).to_be_visible()
    expect(page.locator(".compare thead")).to_contain_text("trial 5")
    assert visitor.complaints == []


def test_trials_are_sorted_filtered_and_compared_without_scripts(visit: Callable) -> None:
    visitor = visit(java_script_enabled=False).sign_in()
    page = visitor.go("/jobs/sample/trials")
    page.get_by_role("link", name="rate").click()
    expect(page.locator("tbody tr").first).to_contain_text("localsgd")
    page.locator("select[name=state]").select_option("failed")
    page.get_by_role("button", name="Apply").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.locator("select[name=state]").select_option("")
    page.get_by_role("button", name="Apply").click()
    for number in (6, 8):
        page.get_by_role("checkbox", name=f"Compare trial {number}", exact=True).check()
    page.get_by_role("button", name="Compare ticked").click()
    expect(page.get_by_text("Rank 3 ran out of device memory")).to_be_visible()


def test_tabs_stay_in_view_and_old_places_lead_to_their_new_address(visit: Callable) -> None:
    for width in (360, 1440):
        visitor = visit(viewport={"width": width, "height": 700}).sign_in()
        page = visitor.go("/jobs/sample/explore")
        expect(page.locator("#fig-history .main-svg").first).to_be_attached()
        page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        expect(page.locator(".tabs")).to_be_in_viewport()
        expect(page.locator(".tabs [aria-current=page]")).to_have_text("Explore")
    page = visitor.go("/jobs/sample#failures")
    page.wait_for_url("**/jobs/sample/log#failures")
    expect(page.locator("#failures")).to_be_in_viewport()


def test_new_job_shows_its_plan_while_it_is_typed_and_is_submitted(visit: Callable, site: object) -> None:
    visitor = visit().sign_in()
    visitor.page.get_by_role("link", name="New job").click()
    page = visitor.page
    page.get_by_label("Command").fill("torchrun --nproc-per-node 8 'train.py")
    expect(page.locator("#problem-command")).to_contain_text("A quotation mark is open")
    expect(page.locator("#problem-working_dir")).to_be_hidden()
    page.get_by_label("Command").fill("torchrun --nproc-per-node 8 train.py")
    page.get_by_label("Folder on the nodes").fill("/srv/train")
    expect(page.locator("#plan")).to_contain_text("What it would do")
    expect(page.locator("#problem-command")).to_be_hidden()
    expect(page.locator("#job-yaml")).to_contain_text("working_dir: /srv/train")
    page.get_by_label("Optuna proposes by").select_option("TPESampler")
    expect(page.locator("#job-yaml")).to_contain_text("sampler: TPESampler")
    page.get_by_role("button", name="Submit the job").click()
    page.wait_for_url("**/jobs/new0")
    expect(page.locator("#verdict")).to_contain_text("Queued")
    assert site.stories.job("new0").spec.workload.command[-1] == "train.py"
    assert visitor.complaints == []


def test_new_job_is_planned_without_scripts(visit: Callable) -> None:
    visitor = visit(java_script_enabled=False).sign_in()
    page = visitor.go("/jobs/new")
    page.get_by_label("Command").fill("torchrun train.py")
    page.get_by_role("button", name="Show the plan").click()
    expect(page.locator("#problem-working_dir")).to_contain_text("full path")
    expect(page.get_by_label("Command")).to_have_value("torchrun train.py")
    page.get_by_label("Folder on the nodes").fill("/srv/train")
    page.get_by_role("button", name="Show the plan").click()
    expect(page.locator("#plan")).to_contain_text("What it would do")


def test_list_of_jobs_follows_by_itself(visit: Callable, site: object) -> None:
    visitor = visit()
    visitor.page.clock.install()
    page = visitor.sign_in().go("/jobs")
    expect(page.locator("tbody tr")).to_have_count(2)
    story = site.stories.told["busy"]
    site.stories.tell(replace(story, job=story.job.model_copy(update={"id": "third"})))
    page.clock.fast_forward(11_000)
    expect(page.locator("tbody tr")).to_have_count(3)


def test_cancelling_needs_a_second_click(visit: Callable, site: object) -> None:
    visitor = visit().sign_in()
    page = visitor.go("/jobs/busy")
    expect(page.get_by_role("button", name="Cancel the job")).to_be_hidden()
    page.get_by_text("Cancel …").click()
    page.get_by_role("button", name="Cancel the job").click()
    expect(page.locator("#job-head")).to_contain_text("cancelling")
    assert site.stories.job("busy").state is JobState.CANCELLING


def test_undecided_job_is_continued_from_its_page(visit: Callable, site: object) -> None:
    story = site.stories.told["sample"]
    site.stories.tell(replace(story, advice=leave_undecided(story.advice)))
    visitor = visit().sign_in()
    page = visitor.go("/jobs/sample")
    expect(page.locator("#verdict")).to_contain_text("Undecided")
    expect(page.locator("#verdict")).to_contain_text("advisor tune --continue sample --minutes 10")
    page.get_by_text("Continue …").click()
    expect(page.get_by_label("Minutes more")).to_have_value("10")
    page.get_by_label("Minutes more").fill("7")
    page.get_by_role("button", name="Continue the job").click()
    expect(page.locator("#job-head")).to_contain_text("queued")
    more_s = site.stories.job("sample").spec.budget.max_seconds - story.job.spec.budget.max_seconds
    assert more_s == 420.0
    assert visitor.complaints == []


def test_copy_button_fills_the_clipboard(visit: Callable) -> None:
    visitor = visit(permissions=["clipboard-read", "clipboard-write"]).sign_in()
    page = visitor.go("/jobs/sample/export")
    page.get_by_role("button", name="Copy").first.click()
    expect(page.locator("#status")).to_have_text("Copied")
    assert "torchrun --nproc-per-node 8" in page.evaluate("navigator.clipboard.readText()")


def test_download_saves_the_file(visit: Callable) -> None:
    visitor = visit(accept_downloads=True).sign_in()
    page = visitor.go("/jobs/sample/export")
    with page.expect_download() as waiting:
        page.get_by_role("link", name="Download", exact=True).click()
    assert waiting.value.suggested_filename == "run.sh"
    with page.expect_download() as waiting:
        page.get_by_role("link", name="All as one archive").click()
    assert waiting.value.suggested_filename == "strategy-sample.zip"


def test_theme_changes_at_once_and_stays(visit: Callable) -> None:
    visitor = visit(color_scheme="light").sign_in()
    page = visitor.go("/jobs/sample")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Dark theme").click()
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert light != dark
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark
    expect(page.get_by_role("button", name="Dark theme")).to_have_attribute("aria-pressed", "true")


SEE_FOCUS = """() => {
    const at = document.activeElement, box = at.getBoundingClientRect(), style = getComputedStyle(at);
    const top = document.elementFromPoint(box.x + Math.min(box.width, innerWidth) / 2, box.y + box.height / 2);
    const isRinged = style.outlineStyle === "solid" && parseFloat(style.outlineWidth) >= 2;
    const isOnTop = at.contains(top) || at.matches(".scroller, pre, .events, main");
    const label = at.ariaLabel || (at.labels?.[0] ?? at).textContent.trim();
    return { name: at.getAttribute("href") ?? label, isRinged, isOnTop };
}"""


def tab_to(page: Page, name: str, most: int = 80) -> None:
    """Press Tab until the link to that address, or the field of that label, has the focus.

    Whatever has it on the way is seen to have it.
    """
    for _ in range(most):
        page.keyboard.press("Tab")
        focus = page.evaluate(SEE_FOCUS)
        assert focus["isRinged"], f"{focus['name']!r} has the focus and does not show it"
        assert focus["isOnTop"], f"{focus['name']!r} has the focus and something lies over it"
        if focus["name"] == name:
            return
    pytest.fail(f"{most} times Tab do not lead to {name!r}")


@pytest.mark.parametrize("width", [360, 1440])
def test_way_from_signing_in_to_an_export_needs_no_pointer(visit: Callable, site: object, width: int) -> None:
    page = visit(viewport={"width": width, "height": 700}).go("/login")
    expect(page.get_by_label("Token")).to_be_focused()
    page.keyboard.type(site.token)
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs")
    tab_to(page, "#content", most=1)
    page.keyboard.press("Enter")
    for address in ("/jobs/sample", "/jobs/sample/trials", "/jobs/sample/trials/5", "/jobs/sample/export"):
        tab_to(page, address)
        page.keyboard.press("Enter")
        page.wait_for_url(f"**{address}")
    tab_to(page, "Format")
    page.keyboard.press("ArrowDown")
    page.wait_for_url("**/jobs/sample/export?format=runtime*")


def test_figures_are_filtered_by_their_bar_and_zoomed_with_the_mouse(visit: Callable, site: object) -> None:
    visitor = visit(viewport={"width": 1440, "height": 900}).sign_in()
    page = visitor.go("/jobs/sample/explore")
    bar = page.get_by_role("form", name="Filter the figures")
    bar.get_by_label("State").select_option("finished")
    bar.get_by_label("Value of").select_option("fuse_grad_size_in_MB")
    bar.get_by_label("from", exact=True).fill("20")
    bar.get_by_label("Contour, x").select_option("num_threads")
    bar.get_by_role("button", name="Apply").click()
    page.wait_for_url("**state=ok*low=20*x=num_threads*")
    expect(page.locator("#filtered")).to_contain_text("of 11 trials")
    plot = page.locator("#fig-history .plot")
    read = "plot => [...plot.layout.xaxis.range]"
    before = plot.evaluate(read)
    box = plot.locator(".nsewdrag").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 3, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 2 / 3, box["y"] + box["height"] / 2, steps=5)
    page.mouse.up()
    after = plot.evaluate(read)
    assert after[1] - after[0] < 0.5 * (before[1] - before[0])
    expect(page.locator("#more-figures .main-svg")).to_have_count(0)
    page.locator("#more-figures > summary").click()
    expect(page.locator("#fig-slice-fuse_grad_size_in_MB .main-svg").first).to_be_attached()
    assert visitor.complaints == []
