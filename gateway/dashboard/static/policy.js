// The editor of the page Policy: a textarea over its own colours, line numbers, marks at what is
// wrong, and completion by the schema. Without this file the textarea works as any other.

import { complete, spaced } from "./policy_complete.js";

const PAINTED_LINES_MAX = 4000;
const CHECK_AFTER_MS = 400;
const LINE_PX = 20;
const PADDING_PX = 8;
const ITEMS_MAX = 60;

const editor = document.getElementById("editor");
const area = document.getElementById("policy-text");
const gutter = editor.querySelector(".gutter");
const paint = editor.querySelector(".paint");
const popup = document.getElementById("completions");
const list = popup.querySelector("ul");
const about = popup.querySelector("p");
const checked = document.getElementById("checked");
const mayWrite = !area.readOnly;

let wrong = new Map(); // line → column of what is wrong there
let offered = { typed: "", items: [] };
let chosen = 0;
let schema = null;

// --- colours -------------------------------------------------------------------------------------

const TOKEN =
  /(#.*$)|("(?:[^"\\]|\\.)*"|'[^']*')(?=\s*:)|("(?:[^"\\]|\\.)*"|'[^']*')|([A-Za-z0-9_<][^\s:,{}[\]#"']*(?: [^\s:,{}[\]#"']+)*)(?=\s*:(?:\s|$))|(\b(?:true|false|null|\d[\w.]*)\b)/g;

function painted(line, row) {
  const holder = document.createDocumentFragment();
  let last = 0;
  const put = (text, name) => {
    if (!text) return;
    if (!name) return holder.append(text);
    const span = document.createElement("span");
    span.className = name;
    span.textContent = text;
    holder.append(span);
  };
  for (const match of line.matchAll(TOKEN)) {
    if (match[1] && match.index > 0 && !/\s/.test(line[match.index - 1])) continue; // a # inside a word
    put(line.slice(last, match.index));
    put(match[0], match[1] ? "c" : match[2] || match[4] ? "k" : match[3] ? "s" : "v");
    last = match.index + match[0].length;
  }
  put(line.slice(last));
  if (wrong.has(row)) {
    const span = document.createElement("span");
    span.className = "wrong";
    span.append(holder);
    return span;
  }
  return holder;
}

function draw() {
  const lines = area.value.split("\n");
  const isPlain = lines.length > PAINTED_LINES_MAX;
  editor.classList.toggle("plain", isPlain);
  const whole = document.createDocumentFragment();
  if (isPlain) whole.append(area.value, "\n");
  else lines.forEach((line, idx) => whole.append(painted(line, idx + 1), "\n"));
  paint.replaceChildren(whole);
  while (gutter.childElementCount > lines.length) gutter.lastElementChild.remove();
  while (gutter.childElementCount < lines.length) {
    const number = document.createElement("span");
    number.textContent = gutter.childElementCount + 1;
    gutter.append(number);
  }
  [...gutter.children].forEach((number, idx) => number.classList.toggle("wrong", wrong.has(idx + 1)));
}

// --- what is wrong --------------------------------------------------------------------------------

function readProblems() {
  const found = [...checked.querySelectorAll(".problems li[data-line]")];
  wrong = new Map(found.reverse().map(({ dataset }) => [Number(dataset.line), Number(dataset.column)]));
  const isValid = checked.querySelector("[data-valid]")?.dataset.valid === "yes";
  area.setAttribute("aria-invalid", String(!isValid));
  draw();
}

function offsetOf(line, column) {
  const lines = area.value.split("\n");
  const before = lines.slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0);
  return before + Math.min(column - 1, lines[line - 1]?.length ?? 0);
}

function showCaret() {
  const before = area.value.slice(0, area.selectionEnd);
  const row = before.split("\n").length - 1;
  const top = PADDING_PX + row * LINE_PX;
  if (top < editor.scrollTop + LINE_PX) editor.scrollTop = Math.max(0, top - LINE_PX * 3);
  const bottom = editor.scrollTop + editor.clientHeight;
  if (top + LINE_PX * 2 > bottom) editor.scrollTop = top + LINE_PX * 4 - editor.clientHeight;
  const left = columnPx(before.slice(before.lastIndexOf("\n") + 1));
  const seen = editor.clientWidth - gutter.offsetWidth - 40;
  if (left < editor.scrollLeft + 40) editor.scrollLeft = Math.max(0, left - 80);
  else if (left > editor.scrollLeft + seen) editor.scrollLeft = left - seen + 80;
}

function columnPx(text) {
  const ruler = document.createElement("span");
  ruler.textContent = text;
  ruler.className = "ruler";
  paint.append(ruler);
  const width = ruler.getBoundingClientRect().width;
  ruler.remove();
  return width;
}

checked.addEventListener("click", (event) => {
  const item = event.target.closest(".problems li[data-line]");
  if (!item) return;
  const at = offsetOf(Number(item.dataset.line), Number(item.dataset.column));
  area.focus();
  area.setSelectionRange(at, at);
  showCaret();
});

document.body.addEventListener("htmx:afterSwap", (event) => {
  if (event.detail.target === checked) readProblems();
});

let checkTimer = 0;
function checkSoon() {
  clearTimeout(checkTimer);
  checkTimer = setTimeout(() => globalThis.htmx?.trigger(checked, "policy-edited"), CHECK_AFTER_MS);
}

// --- completion -----------------------------------------------------------------------------------

async function theSchema() {
  schema ??= fetch(editor.dataset.schema).then((answer) => (answer.ok ? answer.json() : null));
  return schema;
}

async function offer() {
  const known = await theSchema();
  if (!known || area.selectionStart !== area.selectionEnd) return hide();
  offered = complete(known, area.value, area.selectionStart);
  chosen = 0;
  offered.items = offered.items.slice(0, ITEMS_MAX);
  list.replaceChildren(
    ...offered.items.map((item, idx) => {
      const row = document.createElement("li");
      row.id = `completion-${idx}`;
      row.setAttribute("role", "option");
      const detail = document.createElement("span");
      detail.textContent = item.detail;
      row.append(item.label, detail);
      return row;
    }),
  );
  if (offered.items.length === 0) return hide();
  const before = area.value.slice(0, area.selectionStart);
  const row = before.split("\n").length;
  const line = before.slice(before.lastIndexOf("\n") + 1);
  popup.hidden = false;
  const left = 12 + columnPx(line.slice(0, line.length - offered.typed.length));
  popup.style.left = `${Math.max(0, Math.min(left, editor.scrollLeft + editor.clientWidth - gutter.offsetWidth - popup.offsetWidth - 8))}px`;
  const below = PADDING_PX + row * LINE_PX;
  const isLow = below + popup.offsetHeight > editor.scrollTop + editor.clientHeight && below > popup.offsetHeight + LINE_PX;
  popup.style.top = `${isLow ? below - LINE_PX - popup.offsetHeight : below}px`;
  select(0);
}

function select(idx) {
  chosen = (idx + offered.items.length) % offered.items.length;
  [...list.children].forEach((row, n) => row.setAttribute("aria-selected", String(n === chosen)));
  list.children[chosen].scrollIntoView({ block: "nearest" });
  area.setAttribute("aria-activedescendant", `completion-${chosen}`);
  about.textContent = offered.items[chosen].about;
}

function hide() {
  popup.hidden = true;
  area.removeAttribute("aria-activedescendant");
}

function accept() {
  const { insert } = offered.items[chosen];
  const end = area.selectionStart;
  const begin = end - offered.typed.length;
  area.setSelectionRange(begin, end);
  write(spaced(area.value, begin, insert));
  hide();
  if (insert.endsWith(": ")) offer();
}

/** Type it as a person would, so that undo takes it back. */
function write(text) {
  if (!document.execCommand("insertText", false, text)) {
    area.setRangeText(text, area.selectionStart, area.selectionEnd, "end");
    area.dispatchEvent(new Event("input", { bubbles: true }));
  }
}

list.addEventListener("mousedown", (event) => {
  event.preventDefault();
  const idx = [...list.children].indexOf(event.target.closest("li"));
  if (idx < 0) return;
  chosen = idx;
  accept();
});

// --- keys -----------------------------------------------------------------------------------------

function indentBy(step) {
  const from = area.value.lastIndexOf("\n", area.selectionStart - 1) + 1;
  const found = area.value.indexOf("\n", area.selectionEnd);
  const to = found < 0 ? area.value.length : found;
  const lines = area.value.slice(from, to).split("\n");
  const moved = lines.map((line) => (step > 0 ? (line ? `  ${line}` : line) : line.replace(/^ {1,2}/, "")));
  area.setSelectionRange(from, to);
  write(moved.join("\n"));
  area.setSelectionRange(from, from + moved.join("\n").length);
}

function newLine() {
  const before = area.value.slice(0, area.selectionStart);
  const line = before.slice(before.lastIndexOf("\n") + 1);
  const indent = /^\s*(?:- )?/.exec(line)[0].replace("-", " ");
  write(`\n${indent}${/:\s*$/.test(line) ? "  " : ""}`);
}

function onKey(event) {
  const isControl = event.ctrlKey || event.metaKey;
  if (isControl && event.code === "Space") {
    event.preventDefault();
    offer();
  } else if (isControl && (event.key === "]" || event.key === "[")) {
    event.preventDefault();
    indentBy(event.key === "]" ? 1 : -1);
  } else if (!popup.hidden && ["ArrowDown", "ArrowUp"].includes(event.key)) {
    event.preventDefault();
    select(chosen + (event.key === "ArrowDown" ? 1 : -1));
  } else if (!popup.hidden && ["Enter", "Tab"].includes(event.key) && !event.shiftKey) {
    event.preventDefault();
    accept();
  } else if (!popup.hidden && event.key === "Escape") {
    event.preventDefault();
    hide();
  } else if (event.key === "Enter" && !isControl && !event.isComposing) {
    event.preventDefault();
    newLine();
  }
}

function onInput(event) {
  draw();
  checkSoon();
  showCaret();
  const isTyped = event.inputType === "insertText" && /^[\w-]$/.test(event.data ?? "");
  if (isTyped || (!popup.hidden && event.inputType?.startsWith("delete"))) offer();
  else if (event.inputType === "insertText" || event.inputType?.startsWith("delete")) hide();
}

editor.classList.add("alive");
readProblems();
if (mayWrite) {
  area.addEventListener("keydown", onKey);
  area.addEventListener("input", onInput);
  area.addEventListener("blur", hide);
  area.addEventListener("click", hide);
}
document.addEventListener("selectionchange", () => {
  if (document.activeElement === area) showCaret();
});

// A text that is not published yet is not left by mistake.
const opened = area.value;
let isSending = false;
document.getElementById("policy-form").addEventListener("submit", () => (isSending = true));
window.addEventListener("beforeunload", (event) => {
  if (!isSending && mayWrite && area.value !== opened) event.preventDefault();
});
