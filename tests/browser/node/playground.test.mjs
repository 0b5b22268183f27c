// Race and pause in a real browser: who wins is marked, what is copied runs, what is paused rests.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { writeFileSync } from "node:fs";
import { test } from "node:test";
import { promisify } from "node:util";
import { axeFindings, inBrowser, logIn, world } from "./driver.mjs";

const FAST = "simulated-fast/simulated-chat";
const CHEAP = "simulated-cheap/simulated-chat";
const RACE_MS = 30_000;
const run = promisify(execFile);

async function ask(fields = {}) {
  const answer = await fetch(`${world.base_url}/v1/chat/completions`, {
    method: "POST",
    headers: { authorization: `Bearer ${world.key}`, "content-type": "application/json" },
    body: JSON.stringify({
      model: "chat",
      stream: true,
      max_tokens: 12,
      messages: [{ role: "user", content: "Hello" }],
      ...fields,
    }),
  });
  await answer.text();
  return { status: answer.status, endpoint: answer.headers.get("x-looprouter-endpoint") };
}

async function openRace(page, { prompt, endpoints = [FAST, CHEAP], tokens = 60 }) {
  await logIn(page);
  await page.goto(`${world.base_url}/admin/race`);
  for (const box of await page.$$("#runners input:checked")) await box.uncheck();
  for (const each of endpoints) await page.check(`input[data-endpoint="${each}"]`);
  await page.fill("#prompt", prompt);
  await page.fill("#max-tokens", String(tokens));
}

async function ended(page) {
  await page.waitForFunction(
    () => {
      const states = [...document.querySelectorAll(".lane .state")];
      return states.length > 0 && states.every((each) => /done|failed|stopped/.test(each.className));
    },
    null,
    { timeout: RACE_MS },
  );
}

const lane = (page, endpoint) => page.locator(".lane", { has: page.locator("h2", { hasText: endpoint }) });

test("a race of two: text streams, the first to finish is marked, figures are those billed", async () => {
  await inBrowser({}, async (page, seen) => {
    await openRace(page, { prompt: "[[sim tokens=60]] Tell me a story." });
    seen.requests.length = 0;
    await page.keyboard.press("Control+Enter");
    await page.waitForFunction(() => document.querySelector(".lane .state.streaming"), null, { timeout: RACE_MS });
    const early = await lane(page, CHEAP).locator(".answer").textContent();
    await ended(page);
    assert.ok((await lane(page, CHEAP).locator(".answer").textContent()).length > early.length);
    assert.equal(seen.requests.length, 1, seen.requests.join("\n")); // one stream for both lanes
    const marks = async (endpoint) => lane(page, endpoint).locator("[data-mark]:visible").allTextContents();
    assert.deepEqual(await marks(FAST), ["winner", "first token", "fastest"]);
    assert.deepEqual(await marks(CHEAP), ["cheapest"]);
    assert.equal(await page.locator(".lane.winner").count(), 1);
    for (const endpoint of [FAST, CHEAP]) {
      const figure = (name) => lane(page, endpoint).locator(`[data-figure="${name}"]`).textContent();
      assert.equal(await figure("tokens"), "60");
      assert.match(await figure("ttft"), /^\d+ ms$|^\d\.\d\d s$/);
      assert.match(await figure("rate"), /^\d+(\.\d)?$/);
      const href = await lane(page, endpoint).locator("a.request").getAttribute("href");
      const opened = await page.request.get(world.base_url + href);
      assert.equal(opened.status(), 200);
      const shown = await figure("cost");
      assert.ok(shown.startsWith("$0.0"), shown);
    }
    assert.deepEqual(seen.errors, []);
  });
});

test("what is copied as curl, Python and JS runs and is answered", async () => {
  await inBrowser({}, async (page, seen) => {
    await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
    await openRace(page, { prompt: `It's [[sim tokens=8]] "quoted" $HOME\nand 中文 🙂`, endpoints: [CHEAP], tokens: 20 });
    await page.click("#start");
    await ended(page);
    const env = { ...process.env, LOOPROUTER_API_KEY: world.key };
    const texts = {};
    for (const form of ["curl", "Python", "JS"]) {
      await page.click(`button[data-form="${form}"]`);
      await page.waitForFunction((word) => document.getElementById("status").textContent.includes(word), form);
      const text = await page.evaluate(() => navigator.clipboard.readText());
      assert.ok(!text.includes(world.key));
      assert.ok(text.includes("LOOPROUTER_API_KEY"));
      assert.ok(text.includes(CHEAP));
      texts[form] = text;
    }
    writeFileSync(`${world.folder}/copied.py`, texts.Python);
    writeFileSync(`${world.folder}/copied.mjs`, texts.JS);
    const [curl, python, js] = await Promise.all([
      run("bash", ["-c", texts.curl], { env }),
      run(world.python, [`${world.folder}/copied.py`], { env }),
      run(process.execPath, [`${world.folder}/copied.mjs`], { env }),
    ]);
    assert.match(curl.stdout, /data: \[DONE\]/);
    assert.ok(!curl.stdout.includes('"error"'), curl.stdout);
    assert.ok(python.stdout.trim().length > 8, python.stdout + python.stderr);
    assert.ok(js.stdout.trim().length > 8, js.stdout + js.stderr);
    assert.deepEqual(seen.errors, []);
  });
});

test("Esc stops a race: lanes say so, and upstream was closed before its end", async () => {
  await inBrowser({}, async (page, seen) => {
    await openRace(page, { prompt: "[[sim tokens=2000]] Go on and on.", endpoints: [CHEAP], tokens: 4000 });
    await page.click("#start");
    await page.waitForFunction(() => document.querySelector(".lane .answer")?.textContent.length > 20, null, { timeout: RACE_MS });
    const href = await page.locator("a.request").getAttribute("href");
    await page.keyboard.press("Escape");
    await page.waitForSelector(".lane .state.stopped");
    assert.equal(await page.locator("#start").isVisible(), true);
    const id = href.split("/").at(-1);
    let row = null;
    for (let tries = 0; tries < 100 && row === null; tries++) {
      const answer = await page.request.get(`${world.base_url}/admin/api/requests/${id}`);
      if (answer.ok()) row = await answer.json();
      else await new Promise((resolve) => setTimeout(resolve, 100));
    }
    assert.match(JSON.stringify(row), /"status":499/);
    assert.deepEqual(seen.errors, []);
  });
});

test("markup in an answer and in a prompt stays text, and a wrong race says what is wrong", async () => {
  await inBrowser({}, async (page, seen) => {
    await openRace(page, { prompt: "<img src=x onerror=alert(1)>", endpoints: [FAST], tokens: 16 });
    await page.route("**/admin/api/race", async (route) => {
      const events = [
        ["start", { lanes: [{ lane: 0, model: "chat", endpoint: "<b>e</b>", request_id: "req_1" }] }],
        ["lane", { lane: 0, state: "failed", text: "<img src=x onerror=alert(1)>\n**b**", reasoning: "<i>x</i>", ttft_s: 0.1, duration_s: 1, output_tokens: 3, tokens_per_s: 2, cost_usd: "0.00", is_final: true, is_unpriced: false, status: 400, finish: "", error: "<script>alert(1)</script>", error_code: "" }],
        ["end", {}],
      ];
      const body = events.map(([name, data]) => `event: ${name}\ndata: ${JSON.stringify(data)}\n\n`).join("");
      await route.fulfill({ contentType: "text/event-stream", body });
    });
    await page.click("#start");
    await ended(page);
    assert.equal(await page.locator(".lane img, .lane b, .lane i, .lane script").count(), 0);
    assert.equal(await page.locator(".answer").textContent(), "<img src=x onerror=alert(1)>\n**b**");
    assert.match(await page.locator(".lane-error").textContent(), /<script>alert\(1\)<\/script>/);
    await page.unroute("**/admin/api/race");
    await page.fill("#prompt", "   ");
    await page.click("#start");
    await page.waitForSelector("#problem:not([hidden])");
    assert.match(await page.textContent("#problem"), /the prompt is empty/);
    const refused = seen.errors.filter((each) => !each.includes("400")); // the browser's own line
    assert.deepEqual(refused, []);
  });
});

test("a paused endpoint gets no request until it is resumed, without a reload", async () => {
  await inBrowser({}, async (page, seen) => {
    await logIn(page);
    await page.goto(`${world.base_url}/admin/endpoints`);
    await page.waitForSelector('#lamp[data-state="on"]');
    await page.evaluate(() => (globalThis.isSamePage = true));
    const row = page.locator("tr", { has: page.locator("th", { hasText: FAST }) });
    await row.locator("summary").click();
    await row.locator('input[name="note"]').fill("new <b>cable</b>");
    await row.locator('button[value="pause"]').click();
    await row.locator(".state", { hasText: "paused" }).waitFor();
    assert.match(await row.locator(".routing").textContent(), /by admin:admin/);
    assert.match(await row.locator(".said").textContent(), /new <b>cable<\/b>/);
    const during = await Promise.all(Array.from({ length: 10 }, () => ask()));
    assert.ok(during.some(({ status }) => status === 200));
    assert.ok(during.every(({ endpoint }) => endpoint !== FAST), JSON.stringify(during));
    assert.equal((await ask({ model: FAST })).status, 503);
    await row.locator('button[value="probe"]').click();
    await row.locator(".probe.ok").waitFor({ timeout: RACE_MS });
    const now = await page.context().newPage();
    await now.goto(`${world.base_url}/admin/now`);
    assert.match(await now.locator("tr", { has: now.locator("th", { hasText: FAST }) }).last().textContent(), /paused/);
    await now.close();
    await row.locator('button[value="resume"]').click();
    await row.locator(".state", { hasText: "routed" }).waitFor();
    assert.equal((await ask({ model: FAST })).status, 200);
    assert.equal(await page.evaluate(() => globalThis.isSamePage), true);
    assert.deepEqual(seen.errors, []);
  });
});

for (const [colorScheme, locale, language] of [
  ["light", "en-GB", "en"],
  ["dark", "en-GB", "en"],
  ["light", "zh-CN", "zh"],
  ["dark", "zh-CN", "zh"],
]) {
  test(`in ${language}, ${colorScheme}: no console error, no serious fault`, async () => {
    await inBrowser({ colorScheme, locale, height: 1000 }, async (page, seen) => {
      const prompt = language === "zh" ? "[[sim tokens=90]] 讲一个关于竞赛的故事。" : "[[sim tokens=90]] Tell a story of a race.";
      await openRace(page, { prompt, tokens: 120 });
      await page.click("#start");
      await ended(page);
      assert.equal(await page.evaluate(() => document.documentElement.lang.slice(0, 2)), language);
      assert.deepEqual(await axeFindings(page), []);
      assert.deepEqual(seen.errors, []);
      await page.screenshot({ path: `${world.images}/playground-${language}-${colorScheme}.png` });
      await page.goto(`${world.base_url}/admin/endpoints`);
      await page.waitForSelector('#lamp[data-state="on"]');
      await page.locator(".acts summary").first().click();
      await page.screenshot({ path: `${world.images}/playground-endpoints-${language}-${colorScheme}.png` });
      assert.deepEqual(await axeFindings(page), []);
      assert.deepEqual(seen.errors, []);
    });
  });
}
