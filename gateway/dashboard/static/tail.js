// The live tail of the log: rows that the server rendered are put on top, the oldest fall off.

const ROWS_MAX = 200;
const log = document.getElementById("log");
const lamp = document.getElementById("lamp");
const pause = document.getElementById("pause");
let source = null;
let isPaused = false;

function show(state) {
  lamp.dataset.state = state;
  lamp.textContent = lamp.dataset[state];
}

function take(rows) {
  document.getElementById("none")?.remove();
  for (const [id, html] of Object.entries(rows)) {
    if (document.getElementById(id)) continue;
    const page = new DOMParser().parseFromString(`<table>${html}</table>`, "text/html");
    const fresh = page.getElementById(id);
    if (fresh) log.prepend(fresh);
  }
  while (log.children.length > ROWS_MAX) log.lastElementChild.remove();
}

function listen() {
  if (isPaused || document.hidden || source !== null) return;
  source = new EventSource(log.dataset.events);
  source.addEventListener("rows", (event) => take(JSON.parse(event.data)));
  source.addEventListener("open", () => show("on"));
  source.addEventListener("error", () => show("off"));
}

function leave(state) {
  source?.close();
  source = null;
  show(state);
}

pause.hidden = false;
pause.addEventListener("click", () => {
  isPaused = !isPaused;
  pause.setAttribute("aria-pressed", String(isPaused));
  pause.textContent = isPaused ? pause.dataset.resume : pause.dataset.pause;
  if (isPaused) leave("paused");
  else listen();
});

// A page in the background asks for nothing.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) leave("off");
  else listen();
});

listen();
