// The page Batch in a real browser: plan a file, submit it, watch it to its end, open it, cancel another.

import assert from "node:assert/strict";
import { test } from "node:test";
import { axeFindings, inBrowser, logIn, world } from "./driver.mjs";

const WAIT = { timeout: 60_000 };

function lines(count, tokens, models) {
  return Array.from({ length: count }, (_, idx) =>
    JSON.stringify({
      custom_id: `question-${idx}`,
      method: "POST",
      url: "/v1/chat/completions",
      body: { model: models[idx % models.length], max_tokens: tokens, messages: [{ role: "user", content: `Say ${idx}` }] },
    }),
  ).join("\n");
}

async function planned(page, text, name = "questions.jsonl") {
  await page.goto(`${world.base_url}/admin/batch/new`);
  await page.selectOption("#b-key", { index: 1 });
  await page.fill("#b-window", "24h");
  await page.setInputFiles("#b-file", { name, mimeType: "application/jsonl", buffer: Buffer.from(text) });
  await page.click("#upload button.primary");
}

async function submitted(page, text) {
  await planned(page, text);
  await page.waitForSelector("#submit-batch", WAIT);
  await Promise.all([page.waitForURL(/\/admin\/batch\/batch_/), page.click("#submit-batch")]);
  return page.url().split("/").pop();
}

async function pictures(name, work) {
  for (const [colorScheme, locale, language] of [
    ["light", "en-GB", "en"],
    ["dark", "zh-CN", "zh"],
  ]) {
    await inBrowser({ colorScheme, locale }, async (page, seen) => {
      await logIn(page);
      await work(page);
      assert.deepEqual(await axeFindings(page), []);
      assert.deepEqual(seen.errors, []);
      await page.screenshot({ path: `${world.images}/${name}-${language}-${colorScheme}.png` });
    });
  }
}

let ended = "";

test("a file is planned, submitted and watched to its end without a reload by hand", async () => {
  await inBrowser({}, async (page, seen) => {
    await logIn(page);
    ended = await submitted(page, lines(120, 16, ["gpt", "native"]));
    await page.waitForSelector(".figures .tag.good", WAIT);
    await page.waitForFunction(() => document.querySelector("#progress .legend dd").textContent === "120", null, WAIT);
    await page.waitForSelector(`a[href$="/${ended}/files/output"]`, WAIT);
    const [download] = await Promise.all([
      page.waitForEvent("download"),
      page.click(`a[href$="/${ended}/files/output"]`),
    ]);
    assert.equal(download.suggestedFilename(), `${ended}_output.jsonl`);
    assert.deepEqual(seen.errors, []);
  });
});

test("a list moves while a batch runs, and the batch opened from it is cancelled", async () => {
  await inBrowser({}, async (page, seen) => {
    await logIn(page);
    const id = await submitted(page, lines(400, 60, ["slow"]));
    await page.goto(`${world.base_url}/admin/batch`);
    await page.waitForSelector('#lamp[data-state="on"]');
    const row = () => page.textContent(`#${id}`);
    const before = await row();
    await page.evaluate(() => (globalThis.isSamePage = true));
    await page.waitForFunction(
      ([element, old]) => document.getElementById(element).textContent !== old,
      [id, before],
      WAIT,
    );
    assert.equal(await page.evaluate(() => globalThis.isSamePage), true);
    await page.screenshot({ path: `${world.images}/batch-running.png` });
    await page.click(`#${id} a`);
    await page.waitForSelector('#lamp[data-state="on"]');
    await page.screenshot({ path: `${world.images}/batch-one-running.png`, fullPage: true });
    await page.click(".confirm summary");
    await page.click(".confirm button.danger");
    await page.waitForFunction(() => document.getElementById("lamp") === null, null, WAIT);
    assert.match(await page.textContent("#history"), /batch\.cancel.*admin:/s);
    assert.match(await page.textContent("#errors"), /cancelled/);
    assert.deepEqual(seen.errors, []);
  });
});

test("a bad file is refused by its lines, and nothing is kept of it", async () => {
  await inBrowser({}, async (page, seen) => {
    await logIn(page);
    await planned(page, `${lines(2, 8, ["gpt"])}\n{"custom_id": "<b>x</b>"}`);
    await page.waitForSelector("#upload-problem:not([hidden])", WAIT);
    assert.match(await page.textContent("#upload-problem"), /line 3/);
    // The browser itself says that a request was answered with 400.
    assert.deepEqual(seen.errors.filter((text) => !text.includes("400")), []);
  });
});

test("list, one batch and plan: both languages and themes, no serious fault", async () => {
  await pictures("batch", async (page) => {
    await page.goto(`${world.base_url}/admin/batch`);
    await page.waitForSelector('#lamp[data-state="on"]');
  });
  await pictures("batch-one", async (page) => {
    await page.goto(`${world.base_url}/admin/batch/${ended}`);
  });
  await pictures("batch-plan", async (page) => {
    await planned(page, lines(200, 64, ["gpt", "native"]));
    await page.waitForSelector("#submit-batch", WAIT);
  });
  await inBrowser({ width: 390, height: 844 }, async (page) => {
    await logIn(page);
    await page.goto(`${world.base_url}/admin/batch`);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(wide <= 390, `${wide} px wide`);
  });
});
