// The race: one request that streams the news of all lanes. What endpoints say is put in as text.

import { figure, snippet } from "./playground_text.js";

const form = document.getElementById("race");
const start = document.getElementById("start");
const stop = document.getElementById("stop");
const lanesBox = document.getElementById("lanes");
const status = document.getElementById("status");
const problem = document.getElementById("problem");
const chosen = document.getElementById("chosen");
const runners = [...form.querySelectorAll("input[data-endpoint]")];
const lanesMax = Number(form.dataset.lanesMax);

let running = null; // the AbortController of the race
let lanes = [];
let asked = null; // what the lanes shown were asked

function tell(text) {
  problem.textContent = text;
  problem.hidden = text === "";
}

function say(word) {
  status.textContent = status.dataset[word];
}

function countChosen() {
  const num = runners.filter((each) => each.checked).length;
  chosen.textContent = chosen.dataset.words.replace("{num}", num);
  for (const each of runners) each.disabled = num >= lanesMax && !each.checked;
}

function field(id) {
  return document.getElementById(id).value;
}

function wanted() {
  const temperature = field("temperature").trim();
  return {
    system: field("system"),
    prompt: field("prompt"),
    max_tokens: Number(field("max-tokens")),
    temperature: temperature === "" ? null : Number(temperature),
    key: field("payer"),
    lanes: runners
      .filter((each) => each.checked)
      .map(({ dataset }) => ({ model: dataset.model, endpoint: dataset.endpoint })),
  };
}

// One lane's column. Answers are only ever text nodes: markup in them is shown, not obeyed.
function newLane({ lane, model, endpoint, request_id: requestId }) {
  const root = document.getElementById("lane").content.firstElementChild.cloneNode(true);
  const title = root.querySelector("h2");
  title.textContent = endpoint;
  title.id = `lane-${lane}`;
  root.setAttribute("aria-labelledby", title.id);
  root.querySelector(".model").textContent = model;
  root.querySelector(".request").href = form.dataset.requests + encodeURIComponent(requestId);
  const answer = root.querySelector(".answer");
  answer.setAttribute("aria-labelledby", title.id);
  for (const button of root.querySelectorAll("[data-form]")) {
    button.addEventListener("click", () => copy(button.dataset.form, model, endpoint));
  }
  lanesBox.append(root);
  return { root, answer, state: "" };
}

function show(lane, news) {
  const { root, answer } = lane;
  const isAtEnd = answer.scrollTop + answer.clientHeight >= answer.scrollHeight - 24;
  if (news.text) answer.append(news.text);
  if (isAtEnd) answer.scrollTop = answer.scrollHeight;
  if (news.reasoning) {
    const thoughts = root.querySelector(".thoughts");
    thoughts.hidden = false;
    thoughts.lastElementChild.append(news.reasoning);
  }
  for (const cell of root.querySelectorAll("[data-figure]")) {
    cell.textContent = figure(cell.dataset.figure, news, cell.dataset.unpriced);
    const isGuess = !news.is_final && ["rate", "tokens", "cost"].includes(cell.dataset.figure);
    cell.classList.toggle("estimate", isGuess);
    cell.title = isGuess ? root.querySelector("[data-estimate]").dataset.estimate : "";
  }
  const state = root.querySelector(".state");
  state.className = `state ${news.state}`;
  const cut = news.state === "done" && news.finish === "length" ? ` · ${state.dataset.cut}` : "";
  state.textContent = state.dataset[news.state] + cut;
  lane.state = news.state;
  const error = root.querySelector(".lane-error");
  error.hidden = !news.error;
  error.textContent = [news.status || "", news.error_code, news.error].filter(Boolean).join(" · ");
}

function mark(marks) {
  lanes.forEach(({ root }, idx) => {
    for (const tag of root.querySelectorAll("[data-mark]")) {
      tag.hidden = !marks[tag.dataset.mark].includes(idx);
    }
    root.classList.toggle("winner", marks.winner.includes(idx));
  });
}

function take(event, data) {
  if (event === "start") {
    lanesBox.replaceChildren();
    document.getElementById("empty").hidden = true;
    lanes = data.lanes.map(newLane);
  } else if (event === "lane") show(lanes[data.lane], data);
  else if (event === "marks") mark(data);
  else if (event === "end") say("over");
}

async function follow(body) {
  const decoder = new TextDecoder();
  const reader = body.getReader();
  let rest = "";
  let last = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return last;
    rest += decoder.decode(value, { stream: true });
    const events = rest.split("\n\n");
    rest = events.pop();
    for (const each of events) {
      const [, name, data] = /^event: (\w+)\ndata: (.*)$/s.exec(each) ?? [];
      if (!name) continue;
      last = name;
      take(name, JSON.parse(data));
    }
  }
}

function showRunning(isRunning) {
  start.hidden = isRunning;
  stop.hidden = !isRunning;
  if (isRunning) stop.focus();
  else if (document.activeElement === document.body) start.focus();
}

// What had no end of its own was stopped: by us, or by a connection that broke.
function endOpen(word) {
  say(word);
  for (const { root, state } of lanes) {
    if (state !== "waiting" && state !== "streaming") continue;
    const shown = root.querySelector(".state");
    shown.className = "state stopped";
    shown.textContent = shown.dataset.stopped;
  }
}

async function race() {
  if (running !== null || start.disabled || !form.reportValidity()) return;
  tell("");
  asked = wanted();
  running = new AbortController();
  showRunning(true);
  say("running");
  try {
    const answer = await fetch(form.dataset.start, {
      method: "POST",
      headers: { "content-type": "application/json", "x-csrf-token": form.dataset.csrf },
      body: JSON.stringify(asked),
      signal: running.signal,
    });
    if (!answer.ok) {
      status.textContent = "";
      tell((await answer.json()).error.message);
    } else if ((await follow(answer.body)) !== "end") endOpen("lost");
  } catch (error) {
    if (error.name === "AbortError") endOpen("stopped");
    else {
      endOpen("lost");
      tell(String(error));
    }
  } finally {
    running = null;
    showRunning(false);
  }
}

async function copy(kind, model, endpoint) {
  const text = snippet(kind, { ...asked, model, endpoint, origin: location.origin });
  const shown = document.getElementById("snippet");
  shown.hidden = true;
  try {
    await navigator.clipboard.writeText(text);
    status.textContent = status.dataset.copied.replace("{form}", kind);
  } catch {
    say("copy_failed");
    shown.textContent = text;
    shown.hidden = false;
    shown.focus();
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  race();
});
form.addEventListener("change", countChosen);
stop.addEventListener("click", () => running?.abort());
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    race();
  } else if (event.key === "Escape" && running !== null && !document.querySelector("dialog[open]")) {
    running.abort();
  }
});
countChosen();
