// The page Policy in a real browser: a bad policy is pointed at, a good one compared, tried,
// published and rolled back; and the completion, by itself and by hand.

import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { test } from "node:test";
import { complete, contextAt, namesUnder } from "../../../gateway/dashboard/static/policy_complete.js";
import { axeFindings, inBrowser, logIn, world } from "./driver.mjs";

const REQUESTS_MAX = 12;
const BYTES_MAX = 300_000;
const NUM_ASKED = 40;

async function ask(number) {
  const answer = await fetch(`${world.base_url}/v1/chat/completions`, {
    method: "POST",
    headers: { authorization: `Bearer ${world.key}`, "content-type": "application/json" },
    body: JSON.stringify({
      model: "chat",
      stream: number % 2 === 0,
      max_tokens: 16,
      messages: [{ role: "user", content: `Hello ${number}` }],
    }),
  });
  await answer.text();
  assert.equal(answer.status, 200);
}

async function openPolicy(page) {
  await logIn(page);
  await page.goto(`${world.base_url}/admin/policy`);
  await page.waitForSelector("#editor.alive");
}

const text = (page) => page.inputValue("#policy-text");

async function setText(page, value) {
  await page.fill("#policy-text", value);
}

const verdict = (page, word) => page.waitForSelector(`#checked [data-valid="${word}"]`);

async function publish(page, note) {
  await page.fill("#note", note);
  await Promise.all([page.waitForNavigation(), page.click("#publish")]);
}

test("a bad policy is pointed at; a good one is compared, tried, published and rolled back", async () => {
  for (let number = 0; number < NUM_ASKED; number += 8) {
    await Promise.all(Array.from({ length: 8 }, (_, idx) => ask(number + idx)));
  }
  await inBrowser({}, async (page, seen) => {
    await openPolicy(page);
    const before = await text(page);
    assert.equal(before, readFileSync(world.policy, "utf8"));
    const row = before.split("\n").findIndex((line) => line.includes("name: interactive")) + 1;

    await setText(page, before.replace("{by: fastest}", "{by: quickest}"));
    await verdict(page, "no");
    const problem = page.locator(".problems li");
    assert.equal(await problem.getAttribute("data-line"), String(row));
    assert.match(await problem.textContent(), /'quickest' is unknown; use fastest, balanced/);
    assert.equal(await page.textContent(".gutter .wrong"), String(row));
    await page.screenshot({ path: `${world.images}/policy-wrong.png` });
    await problem.locator("button").click();
    const caret = await page.evaluate(() => {
      const area = document.activeElement;
      return area.value.slice(area.selectionStart, area.selectionStart + 12);
    });
    assert.equal(caret, "by: quickest");
    await publish(page, "it does not load");
    assert.match(await page.textContent('[role="alert"]'), /does not load/);
    assert.match(await text(page), /quickest/); // nothing typed is lost
    assert.equal(readFileSync(world.policy, "utf8"), before);

    const good = `# dearer is no good here\n${before.replace("{by: fastest}", "{by: cheapest}")}`;
    await setText(page, good);
    await verdict(page, "yes");
    assert.match(await page.textContent("#checked .diff"), /prefer: \{by: cheapest\}/);
    assert.match(await page.textContent("#checked .names"), /~ interactive/);
    assert.equal(await page.locator("#checked tr.removed").count(), 1);
    assert.equal(await page.locator("#checked tr.added").count(), 2);

    await page.click('button[formaction$="/policy/explain"]');
    await page.waitForSelector("#explained tbody tr");
    assert.match(await page.textContent("#explained"), /simulated-cheap\/simulated-chat.*chosen/s);

    await page.click('button[formaction$="/policy/backtest"]');
    await page.waitForSelector("#backtested .trial", { timeout: 60_000 });
    const trial = await page.textContent("#backtested");
    assert.match(trial, /requests decided again/);
    assert.match(trial, /\d+ of \d+ predicted/);
    assert.match(trial, /all real/);
    assert.ok((await page.locator("#backtested circle.new.guessed").count()) >= 3);
    assert.ok((await page.locator("#backtested circle.old:not(.guessed)").count()) >= 3);
    assert.deepEqual(await axeFindings(page), []);
    await page.screenshot({ path: `${world.images}/policy-tried.png`, fullPage: true });

    await publish(page, "money first");
    assert.equal(readFileSync(world.policy, "utf8"), good);
    assert.equal(await text(page), good);
    assert.match(await page.textContent("#history-rows tr"), /money first/);

    await page.locator("#history-rows tr").nth(1).locator("a").click();
    await page.waitForSelector("#roll-back");
    assert.match(await page.textContent(".diff"), /\{by: fastest\}/);
    assert.deepEqual(await axeFindings(page), []);
    await page.screenshot({ path: `${world.images}/policy-back.png` });
    await Promise.all([page.waitForNavigation(), page.click("#roll-back")]);
    assert.equal(readFileSync(world.policy, "utf8"), before);
    assert.match(await page.textContent("#history-rows tr"), /rolled back/);
    const bad = seen.errors.filter((error) => !/status of 400/.test(error));
    assert.deepEqual(bad, []); // the refused publication is the browser's to report
  });
});

async function meetConflict(page) {
  const before = await text(page);
  writeFileSync(world.policy, `${before}# by hand\n`);
  await setText(page, `${before}# from the page\n`);
  await verdict(page, "yes");
  await publish(page, "mine");
  assert.match(await page.textContent('[role="alert"]'), /another than the one you began with/);
  assert.equal(await text(page), `${before}# from the page\n`);
  assert.match(await page.textContent("#checked tr.removed"), /# by hand/);
  await page.screenshot({ path: `${world.images}/policy-conflict.png` });
  await Promise.all([page.waitForNavigation(), page.click('button[name="on"]')]);
  assert.equal(readFileSync(world.policy, "utf8"), `${before}# from the page\n`);
  await setText(page, before);
  await publish(page, "as it was");
  assert.equal(readFileSync(world.policy, "utf8"), before);
}

async function completeByKeyboard(page) {
  const before = await text(page);
  await setText(page, `${before}\n`);
  await page.focus("#policy-text");
  await page.keyboard.press("Control+End");
  await page.keyboard.type("timeo");
  await page.waitForSelector("#completions:not([hidden])");
  assert.equal(await page.textContent('#completions [aria-selected="true"]'), "timeoutsobject");
  await page.screenshot({ path: `${world.images}/policy-completion.png` });
  await page.keyboard.press("Tab");
  assert.ok((await text(page)).endsWith("\ntimeouts: "));
  await page.keyboard.type("{conn");
  await page.waitForSelector("#completions:not([hidden])");
  await page.keyboard.press("Enter");
  await page.waitForSelector("#completions:not([hidden])");
  await page.keyboard.press("Escape");
  assert.ok((await text(page)).endsWith("\ntimeouts: {connect: "));
  await page.keyboard.type("5s}");
  await verdict(page, "yes");
  await page.keyboard.press("Enter");
  await page.keyboard.type("retry:");
  await page.keyboard.press("Enter");
  await page.keyboard.type("max: 1");
  assert.equal((await text(page)).slice(-16), "\nretry:\n  max: 1");
  await page.keyboard.press("Escape");
  await page.keyboard.press("Tab"); // the field is no trap
  assert.notEqual(await page.evaluate(() => document.activeElement.id), "policy-text");
}

test("a change in the file under an open editor loses nothing; keys and values are completed", async () => {
  await inBrowser({}, async (page, seen) => {
    await openPolicy(page);
    await completeByKeyboard(page);
    assert.deepEqual(seen.errors, []);
    page.once("dialog", (dialog) => dialog.accept()); // the text that was not published
    await page.reload();
    await page.waitForSelector("#editor.alive");
    await meetConflict(page);
  });
});

/** Loads the page with nothing cached but what the log-in has, and the schema too. */
async function weigh(page) {
  const [urls, sizes] = [[], []];
  page.on("request", (request) => urls.push(request.url()));
  page.on("requestfinished", (request) => sizes.push(request.sizes()));
  await page.goto(`${world.base_url}/admin/policy`);
  await page.waitForSelector("#editor.alive");
  await page.focus("#policy-text");
  await page.keyboard.press("Control+End");
  await page.keyboard.press("Control+Space");
  await page.waitForSelector("#completions:not([hidden])");
  await page.keyboard.press("Escape");
  const bytes = (await Promise.all(sizes)).reduce((sum, each) => sum + each.responseBodySize, 0);
  console.log(`${urls.length} requests, ${bytes} bytes`);
  assert.ok(urls.length <= REQUESTS_MAX, urls.join("\n"));
  assert.ok(bytes > 1000 && bytes <= BYTES_MAX, `${bytes} bytes`);
}

for (const [colorScheme, locale, language] of [
  ["light", "en-GB", "en"],
  ["dark", "zh-CN", "zh"],
]) {
  test(`in ${language}, ${colorScheme}: no console error, no serious fault, light enough`, async () => {
    await inBrowser({ colorScheme, locale, height: 1000 }, async (page, seen) => {
      await logIn(page);
      await weigh(page);
      const before = await text(page);
      const value = before.replace("{by: fastest}", "{by: balanced, usd_per_second: 0.002}");
      await setText(page, value.replace("routes:", "retry: {max: 1}         # one is enough\nroutes:"));
      await page.waitForSelector("#checked tr.added");
      assert.equal(await page.evaluate(() => document.documentElement.lang.slice(0, 2)), language);
      assert.deepEqual(await axeFindings(page), []);
      assert.deepEqual(seen.errors, []);
      await page.evaluate(() => document.activeElement.blur());
      await page.screenshot({ path: `${world.images}/policy-${language}-${colorScheme}.png` });
    });
  });
}

const SCHEMA = {
  type: "object",
  properties: {
    providers: { type: "object", additionalProperties: { $ref: "#/$defs/Provider" } },
    models: {
      type: "object",
      additionalProperties: { type: "array", items: { $ref: "#/$defs/Endpoint" } },
    },
    routes: { type: "array", items: { $ref: "#/$defs/Route" } },
    unpriced: { anyOf: [{ enum: ["allow", "block"] }, { $ref: "#/$defs/Price" }] },
  },
  $defs: {
    Provider: { type: "object", properties: { api: { enum: ["openai", "anthropic"] }, verify_tls: { type: "boolean" } } },
    Endpoint: {
      type: "object",
      properties: { provider: { type: "string" }, model: { type: "string" }, price: { $ref: "#/$defs/Price" } },
    },
    Price: { type: "object", properties: { input: { type: "number" }, output: { type: "number" } } },
    Route: { type: "object", properties: { name: { type: "string" }, prefer: { $ref: "#/$defs/Prefer" } } },
    Prefer: { type: "object", properties: { by: { enum: ["fastest", "cheapest"] }, deadline: { type: "string" } } },
  },
};
const PLACES = [
  ["|", ["providers", "models", "routes", "unpriced"]],
  ["rou|", ["routes"]],
  ["models: {}\n|", ["providers", "routes", "unpriced"]],
  ["providers:\n  a:\n    |", ["api", "verify_tls"]],
  ["providers:\n  a:\n    api: openai\n    |", ["verify_tls"]],
  ["providers:\n  a:\n    api: |", ["openai", "anthropic"]],
  ["providers:\n  a: {verify_tls: |}", ["true", "false"]],
  ["providers:\n  groq: {}\n  own:\n    api: openai\nmodels:\n  m:\n    - {provider: |", ["groq", "own"]],
  ["models:\n  m:\n    - |", ["provider", "model", "price"]],
  ["models:\n  m:\n  - provider: a\n    |", ["model", "price"]],
  ["models:\n  m:\n    - provider: a\n      price:\n        in|", ["input"]],
  ["models:\n  m:\n    - {provider: a, price: {input: 1, |}}", ["output"]],
  ["models:\n  m: [{provider: a, |", ["model", "price"]],
  ["routes:\n  - {name: r, prefer: {by: f|", ["fastest"]],
  ["routes:\n- name: r\n  prefer:\n    by: |", ["fastest", "cheapest"]],
  ["unpriced: |", ["allow", "block"]],
  ["unpriced:\n  |", ["input", "output"]],
  ["version: 1 # rou|", []],
  ['providers: {a: {api: "op|', []],
  ["routes:\n  - {name: r}\nmodels:\n  m:\n    - {|}", ["provider", "model", "price"]],
];
for (const [marked, wanted] of PLACES) {
  test(`completion at ${JSON.stringify(marked)}`, () => {
    const offset = marked.indexOf("|");
    const found = complete(SCHEMA, marked.replace("|", ""), offset);
    assert.deepEqual(found.items.map(({ label }) => label), wanted, JSON.stringify(contextAt(marked.replace("|", ""), offset)));
  });
}

test("names under a section end where it ends", () => {
  const given = "providers:\n  # none\n  a: {x: 1}\n  'b c':\n    api: openai\nmodels:\n  m: []\n";
  assert.deepEqual(namesUnder(given, "providers"), ["a", "b c"]);
  assert.deepEqual(namesUnder(given, "models"), ["m"]);
  assert.deepEqual(namesUnder(given, "routes"), []);
});
