// Refreshes the figures from /status.json every two seconds. Text goes in as text, never as markup.
"use strict";

const REFRESH_MS = 2000;

function put(node, text) {
  if (node === null) return;
  const lines = String(text).split("\n");
  node.replaceChildren(document.createTextNode(lines[0]));
  if (lines.length > 1) {
    const small = document.createElement("small");
    small.textContent = lines[1];
    node.append(small);
  }
}

function cell(text, numeric) {
  const td = document.createElement("td");
  td.textContent = text;
  if (numeric) td.className = "n";
  return td;
}

function drawBars() {
  for (const bar of document.querySelectorAll("[data-share]")) {
    bar.style.width = `${Math.round(100 * Number(bar.dataset.share))}%`;
  }
}

function splitLines() {
  for (const node of document.querySelectorAll("td.ttft, td.rate, td.success")) put(node, node.textContent);
}

function show(status) {
  put(document.getElementById("policy"), status.policy_version.slice(0, 12));
  put(document.getElementById("uptime"), status.uptime_text);
  put(document.getElementById("requests"), status.requests_total);
  put(document.getElementById("in-flight"), status.in_flight);
  put(document.getElementById("failed"), status.failed_total);
  put(document.getElementById("spend"), `$${status.spend_usd}`);
  const problem = document.getElementById("problem");
  problem.hidden = status.problem === "";
  put(problem, status.problem);
  for (const endpoint of status.endpoints) {
    const row = [...document.querySelectorAll("#endpoints tbody tr")].find((tr) => tr.dataset.id === endpoint.id);
    if (row === undefined) {
      // The policy changed: the table itself is different now.
      location.reload();
      return;
    }
    const state = row.querySelector(".state");
    state.className = `state ${endpoint.breaker}`;
    put(state, endpoint.breaker.replace("_", "-"));
    row.querySelector("[data-share]").dataset.share = endpoint.share;
    put(row.querySelector(".share"), `${Math.round(endpoint.share * 100)} %`);
    put(row.querySelector(".ttft"), endpoint.ttft_text);
    put(row.querySelector(".rate"), endpoint.rate_text);
    put(row.querySelector(".success"), endpoint.success_text);
    put(row.querySelector(".in-flight"), `${endpoint.in_flight} / ${endpoint.capacity}`);
    put(row.querySelector(".price"), endpoint.price_text);
    put(row.querySelector(".machine"), endpoint.machine_text);
    put(row.querySelector(".spend"), `$${endpoint.spend_usd}`);
  }
  drawBars();
  if (status.recent.length > 0) {
    const rows = status.recent.map((r) => {
      const tr = document.createElement("tr");
      tr.append(cell(r.at), cell(r.model), cell(r.endpoint), cell(r.lane), cell(r.attempts, true),
        cell(r.ttft, true), cell(r.duration, true), cell(r.cost, true), cell(r.status));
      return tr;
    });
    document.querySelector("#recent tbody").replaceChildren(...rows);
  }
}

async function refresh() {
  try {
    const answer = await fetch("/status.json", { cache: "no-store" });
    if (answer.ok) show(await answer.json());
  } catch {
    // The gateway is restarting; the next turn tries again.
  }
  setTimeout(refresh, REFRESH_MS);
}

splitLines();
drawBars();
setTimeout(refresh, REFRESH_MS);
