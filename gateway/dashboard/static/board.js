// The live board: the server sends the parts of the page that changed, as HTML it rendered itself;
// they are merged into what is shown, so that focus, selection and scroll stay where they are.

const board = document.getElementById("board");
const lamp = document.getElementById("lamp");

function sameKind(old, fresh) {
  return old.nodeType === fresh.nodeType && old.nodeName === fresh.nodeName;
}

function mergeAttributes(old, fresh) {
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && name !== "hidden" && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
}

function flash(text) {
  const cell = text.parentElement;
  if (!cell?.matches("td, .value, td *")) return;
  cell.classList.remove("changed");
  void cell.getBoundingClientRect(); // so that the animation starts anew
  cell.classList.add("changed");
}

function merge(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) {
      old.data = fresh.data;
      flash(old);
    }
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) return;
  mergeAttributes(old, fresh);
  const olds = [...old.childNodes];
  const freshes = [...fresh.childNodes];
  freshes.forEach((child, idx) => {
    const there = olds[idx];
    if (there === undefined) old.append(child);
    else if (sameKind(there, child)) merge(there, child);
    else there.replaceWith(child);
  });
  for (const rest of olds.slice(freshes.length)) rest.remove();
}

function take(parts) {
  for (const [id, html] of Object.entries(parts)) {
    const old = document.getElementById(id);
    // A template takes parts of tables and forms alike; a parser of documents would move them.
    const shell = document.createElement("template");
    shell.innerHTML = html;
    const fresh = shell.content.getElementById(id);
    if (old && fresh) merge(old, fresh);
  }
}

function show(state) {
  lamp.dataset.state = state;
  lamp.textContent = lamp.dataset[state];
}

let source = null;

function listen() {
  source = new EventSource(board.dataset.events);
  source.addEventListener("board", (event) => {
    take(JSON.parse(event.data));
    show("on");
  });
  // Another policy: rows came or went, so the page is drawn anew.
  source.addEventListener("reload", () => location.reload());
  source.addEventListener("open", () => show("on"));
  source.addEventListener("error", () => show("off"));
}

// A page in the background asks for nothing.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    source?.close();
    source = null;
  } else if (source === null) {
    listen();
  }
});

listen();
