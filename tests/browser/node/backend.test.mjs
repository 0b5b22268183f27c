// The page Backend in a real browser: a real server at work, then stopped; both languages and themes.

import assert from "node:assert/strict";
import { test } from "node:test";
import { axeFindings, inBrowser, logIn, world } from "./driver.mjs";

async function ask(prompt, tokens) {
  const answer = await fetch(`${world.base_url}/v1/chat/completions`, {
    method: "POST",
    headers: { authorization: `Bearer ${world.key}`, "content-type": "application/json" },
    body: JSON.stringify({
      model: "words",
      temperature: 0,
      max_tokens: tokens,
      messages: [{ role: "user", content: prompt }],
    }),
  });
  await answer.text();
  assert.equal(answer.status, 200);
}

async function openPage(page) {
  await logIn(page);
  await page.goto(`${world.base_url}/admin/backend`);
  await page.waitForSelector('#lamp[data-state="on"]');
}

test("the page follows the server while requests run, without a reload", async () => {
  await inBrowser({}, async (page, seen) => {
    await ask(world.prompts[0], 24); // so that its tables are there
    await openPage(page);
    await page.evaluate(() => (globalThis.isSamePage = true));
    const rounds = () => page.textContent("#places-0 tr:first-child th .sub");
    const before = await rounds();
    await page.focus("section.server .scroll");
    for (const prompt of world.prompts) await ask(prompt, world.tokens);
    await page.waitForFunction(
      (old) => document.querySelector("#places-0 tr:first-child th .sub").textContent !== old,
      before,
      { timeout: 15_000 },
    );
    assert.equal(await page.evaluate(() => globalThis.isSamePage), true);
    assert.equal(await page.evaluate(() => document.activeElement.className), "scroll");
    assert.ok((await page.locator("#costs-0 td[class*=' h']").count()) >= 2);
    assert.ok((await page.locator("#decisions-0 tr").count()) >= 3);
    assert.match(await page.textContent("#why-0"), new RegExp(world.method.replace("+", "\\+")));
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
    await inBrowser({ colorScheme, locale }, async (page, seen) => {
      await openPage(page);
      const running = ask(world.prompts[0], world.tokens);
      await page.waitForTimeout(1200);
      assert.deepEqual(await axeFindings(page), []);
      const width = await page.evaluate(() => document.documentElement.scrollWidth);
      assert.ok(width <= 1440, `${width} px wide`);
      await page.screenshot({ path: `${world.images}/backend-${language}-${colorScheme}.png`, fullPage: true });
      await running;
      assert.deepEqual(seen.errors, []);
    });
  });
}

test("the keyboard goes there, and on a phone nothing is wider than the screen", async () => {
  await inBrowser({ width: 390, height: 844 }, async (page, seen) => {
    await logIn(page);
    await page.keyboard.press("g");
    await Promise.all([page.waitForNavigation(), page.keyboard.press("m")]);
    assert.ok(page.url().endsWith("/admin/backend"));
    const width = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(width <= 390, `${width} px wide`);
    assert.deepEqual(await axeFindings(page), []);
    assert.deepEqual(seen.errors, []);
  });
});

test("a server that goes away is shown as gone, with what to look at", async () => {
  await inBrowser({}, async (page, seen) => {
    await openPage(page);
    process.kill(world.backend_pid, "SIGTERM");
    await page.waitForSelector("p.problem", { timeout: 30_000 });
    assert.match(await page.textContent("#problem-0"), /cannot be reached|does not serve/);
    assert.deepEqual(await axeFindings(page), []);
    await page.screenshot({ path: `${world.images}/backend-gone.png`, fullPage: true });
    assert.deepEqual(seen.errors, []);
  });
});
