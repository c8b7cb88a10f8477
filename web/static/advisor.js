// Makes the pages live: draws figures, follows changes, copies snippets, switches the theme.
// Every page works without it; it only fetches from its own origin.

const root = document.documentElement;
const status = document.getElementById("status");

// --- figures -----------------------------------------------------------------------------------------

/** Text and grid colours come from the theme; the data's own colours were chosen for both. */
function dress(layout, plot) {
  const style = getComputedStyle(plot);
  const quiet = getComputedStyle(plot.closest("figure").querySelector("figcaption p")).color;
  const narrow = plot.clientWidth < 420;
  // A finger that drags scrolls the page; a mouse that drags zooms, and a double click shows all again.
  const zooms = matchMedia("(pointer: fine)").matches;
  const axis = (given) => ({
    ...given,
    fixedrange: !zooms,
    gridcolor: style.borderTopColor,
    linecolor: style.borderTopColor,
    tickfont: { color: quiet, size: narrow ? 11 : 12 },
    title: { ...given?.title, font: { color: quiet, size: 12 } },
  });
  return {
    ...layout,
    autosize: true,
    dragmode: zooms ? "zoom" : false,
    uirevision: "kept",
    font: { family: style.fontFamily, color: style.color, size: 12 },
    // Half a figure is what Plotly gives a legend before it scrolls, and its bar lies in the chart.
    legend: { ...layout.legend, maxheight: 400, font: { color: quiet, size: 12 } },
    xaxis: axis(layout.xaxis),
    yaxis: axis(layout.yaxis),
    hoverlabel: { font: { family: style.fontFamily } },
  };
}

function draw(figure) {
  // What is folded has no width yet: it is drawn when it is opened.
  if (figure.closest("details:not([open])")) return;
  const plot = figure.querySelector(".plot");
  const source = figure.querySelector("script[type='application/json']");
  if (!plot || !source) return;
  if (!window.Plotly) {
    plot.textContent = "The chart could not be loaded; its numbers are below.";
    return;
  }
  if (!plot.classList.contains("js-plotly-plot")) plot.textContent = "";
  const { data, layout } = JSON.parse(source.textContent);
  // On a phone a legend is a column above the chart: it gets room of its own, or it would take the chart's.
  const entries = layout.showlegend && plot.clientWidth < 420 ? data.filter((trace) => trace.name).length : 0;
  plot.style.height = entries ? `${layout.height + 20 * entries}px` : "";
  layout.height += 20 * entries;
  window.Plotly.react(plot, data, dress(layout, plot), { displayModeBar: false, responsive: true });
}

function drawAll(scope = document) {
  for (const figure of scope.querySelectorAll("figure.figure")) draw(figure);
}

// --- following changes -------------------------------------------------------------------------------

// What the server sent last for each live part: the page itself has changed since by drawing and opening.
const sent = new Map();

function liveParts(scope) {
  return [...scope.querySelectorAll("[data-live][id]")];
}

function remember(scope) {
  for (const part of liveParts(scope)) sent.set(part.id, part.innerHTML);
}

function replacePart(part, fresh) {
  const open = new Set([...part.querySelectorAll("details[open][data-key]")].map((item) => item.dataset.key));
  const focused = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const chosen = new Set([...part.querySelectorAll("input:checked")].map((box) => box.value));
  const scrolled = part.querySelector(".events")?.scrollTop ?? 0;
  part.replaceChildren(...fresh.cloneNode(true).childNodes);
  for (const item of part.querySelectorAll("details[data-key]")) item.open = open.has(item.dataset.key);
  for (const box of part.querySelectorAll("input[type='checkbox']")) box.checked = chosen.has(box.value);
  if (focused) part.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
  const list = part.querySelector(".events");
  if (list) list.scrollTop = scrolled;
  if (part.matches("figure.figure")) draw(part);
}

const lost = document.getElementById("lost");
let losing = 0;

/** A stream that ends and is opened again within seconds is no loss. */
function missServer() {
  losing ||= setTimeout(() => { lost.hidden = false; }, 5000);
}

function findServer() {
  clearTimeout(losing);
  losing = 0;
  lost.hidden = true;
}

let fetching = false;
let again = false;
let version = "";

/** Fetch this very page and replace the parts that differ. */
async function refresh() {
  if (fetching) {
    again = true;
    return;
  }
  fetching = true;
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html", "if-none-match": version } });
    findServer();
    if (answer.status === 304) return;
    if (answer.redirected && new URL(answer.url).pathname === "/login") location.reload();
    if (!answer.ok) return;
    version = answer.headers.get("etag") ?? "";
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const shape = (scope) => liveParts(scope).map((part) => part.id).join(" ");
    if (shape(page) !== shape(document)) {
      // A figure or a section came or went: take the whole content, keep the place.
      const content = document.getElementById("content");
      content.replaceChildren(...document.adoptNode(page.getElementById("content")).childNodes);
      remember(document);
      drawAll(content);
    } else {
      for (const fresh of liveParts(page)) {
        if (fresh.innerHTML === sent.get(fresh.id)) continue;
        sent.set(fresh.id, fresh.innerHTML);
        replacePart(document.getElementById(fresh.id), fresh);
      }
    }
    document.title = page.title;
  } catch {
    // The stream or the next round tries again.
    missServer();
  } finally {
    fetching = false;
    if (again) {
      again = false;
      refresh();
    }
  }
}

/** One stream per visible tab: browsers allow six connections to a server, and hidden tabs must not hold them. */
function follow(url) {
  let stream = null;
  const open = () => {
    stream = new EventSource(url);
    stream.addEventListener("open", findServer);
    stream.addEventListener("error", () => {
      missServer();
      // The browser opens a stream again that broke, not one that was refused: the page says why, or it is well again.
      if (stream.readyState === EventSource.CLOSED) setTimeout(change, 3000);
    });
    stream.addEventListener("changed", refresh);
    stream.addEventListener("ended", () => {
      stream.close();
      document.removeEventListener("visibilitychange", change);
      refresh();
      status.textContent = "The job has ended.";
    });
  };
  const change = () => {
    stream?.close();
    if (document.hidden) return;
    refresh();
    open();
  };
  document.addEventListener("visibilitychange", change);
  if (!document.hidden) open();
}

// --- the form of a new job ---------------------------------------------------------------------------

/** Ask what the job would do whenever its form changes; the newest answer wins. */
function planLive(form) {
  let newest = 0;
  let timer = 0;
  const touched = new Set();
  const plan = async () => {
    const mine = (newest += 1);
    const answer = await fetch(form.dataset.plan, { method: "POST", body: new URLSearchParams(new FormData(form)) });
    if (!answer.ok || mine !== newest) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const fresh of liveParts(page)) {
      const field = fresh.id.replace("problem-", "");
      // A field that the user has not been to yet is empty, and is not marked as wrong.
      if (fresh.id.startsWith("problem-") && form.elements[field] && !touched.has(field)) continue;
      replacePart(document.getElementById(fresh.id), fresh);
      form.elements[field]?.setAttribute?.("aria-invalid", String(fresh.textContent !== ""));
    }
  };
  const soon = (event) => {
    touched.add(event.target.name);
    clearTimeout(timer);
    timer = setTimeout(() => plan().catch(() => {}), 350);
  };
  form.addEventListener("input", soon);
  form.addEventListener("change", soon);
}

// --- small things ------------------------------------------------------------------------------------

async function copy(button) {
  const text = document.getElementById(button.dataset.copy);
  const word = button.querySelector("span");
  try {
    await navigator.clipboard.writeText(text.textContent);
    word.textContent = "Copied";
  } catch {
    // Over plain http from another machine there is no clipboard: select the text for the person's own copy.
    getSelection().selectAllChildren(text);
    word.textContent = "Selected";
  }
  status.textContent = word.textContent;
  button.classList.add("said");
  setTimeout(() => {
    word.textContent = "Copy";
    button.classList.remove("said");
  }, 1600);
}

function setTheme(theme) {
  root.dataset.theme = theme;
  document.cookie = `advisor_theme=${theme}; path=/; max-age=31536000; samesite=strict`;
  for (const button of document.querySelectorAll("button[name='theme']")) {
    button.setAttribute("aria-pressed", String(button.value === theme));
  }
  drawAll();
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button?.dataset.copy) copy(button);
  if (button?.name === "theme") {
    event.preventDefault();
    setTheme(button.value);
  }
  for (const popover of document.querySelectorAll("details.confirm[open]")) {
    if (!popover.contains(event.target)) popover.open = false;
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  for (const popover of document.querySelectorAll("details.confirm[open]")) popover.open = false;
});
document.addEventListener("change", (event) => {
  if (event.target.matches("select[data-submit]")) event.target.form.submit();
});
document.addEventListener("toggle", (event) => {
  if (event.target.open) drawAll(event.target);
}, true);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll());

// The job's page was one long page once: its sections have addresses of their own now.
const moved = { trials: "trials", failures: "log", events: "log", details: "log" }[location.hash.slice(1)];
if (moved && /^\/jobs\/[^/]+$/.test(location.pathname)) location.replace(`${location.pathname}/${moved}${location.hash}`);

remember(document);
drawAll();
const planned = document.querySelector("form[data-plan]");
if (planned) planLive(planned);
const { liveUrl, refreshS } = document.body.dataset;
if (liveUrl) follow(liveUrl);
if (refreshS) setInterval(() => { if (!document.hidden) refresh(); }, Number(refreshS) * 1000);
