// The page Now in a real browser: it moves, in both languages and themes, with the keyboard, on a phone.

import assert from "node:assert/strict";
import { test } from "node:test";
import { axeFindings, inBrowser, logIn, world } from "./driver.mjs";

const REQUESTS_MAX = 12;
const BYTES_MAX = 300_000;

async function ask(stream) {
  const answer = await fetch(`${world.base_url}/v1/chat/completions`, {
    method: "POST",
    headers: { authorization: `Bearer ${world.key}`, "content-type": "application/json" },
    body: JSON.stringify({
      model: "chat",
      stream,
      max_tokens: 40,
      messages: [{ role: "user", content: "Hello" }],
    }),
  });
  await answer.text();
  assert.equal(answer.status, 200);
}

async function openBoard(page) {
  await logIn(page);
  await page.goto(`${world.base_url}/admin/now`);
  await page.waitForSelector('#lamp[data-state="on"]');
}

test("the board changes while requests run, without a reload", async () => {
  await inBrowser({}, async (page, seen) => {
    await openBoard(page);
    const figures = () => page.textContent("#figures");
    const row = () => page.textContent("#endpoint-0");
    const [before, rowBefore] = [await figures(), await row()];
    await page.evaluate(() => (globalThis.isSamePage = true));
    await Promise.all(Array.from({ length: 6 }, (_, idx) => ask(idx % 3 !== 0)));
    await page.waitForFunction(
      ([old, oldRow]) =>
        document.getElementById("figures").textContent !== old &&
        document.getElementById("endpoint-0").textContent !== oldRow,
      [before, rowBefore],
      { timeout: 15_000 },
    );
    assert.equal(await page.evaluate(() => globalThis.isSamePage), true);
    assert.notEqual(await figures(), before);
    assert.deepEqual(seen.errors, []);
  });
});

test(`a page load is at most ${REQUESTS_MAX} requests and ${BYTES_MAX / 1000} kB`, async () => {
  await inBrowser({}, async (page, seen) => {
    await logIn(page);
    // What the page after the log-in asks for on a busy machine is not this load's.
    await page.waitForSelector('#lamp[data-state="on"]');
    await page.waitForLoadState("load");
    seen.requests.length = 0;
    const sizes = [];
    page.on("requestfinished", (request) => sizes.push(request.sizes()));
    await page.goto(`${world.base_url}/admin/now`);
    await page.waitForSelector('#lamp[data-state="on"]');
    await page.waitForTimeout(1500);
    const bytes = (await Promise.all(sizes)).reduce((sum, each) => sum + each.responseBodySize, 0);
    assert.ok(seen.requests.length <= REQUESTS_MAX, seen.requests.join("\n"));
    assert.equal(new Set(seen.requests).size, seen.requests.length);
    assert.ok(seen.requests.every((url) => url.startsWith(world.base_url)));
    assert.ok(bytes > 1000 && bytes <= BYTES_MAX, `${bytes} bytes`);
  });
});

for (const path of world.paths) {
  for (const [colorScheme, locale, language] of [
    ["light", "en-GB", "en"],
    ["dark", "en-GB", "en"],
    ["light", "zh-CN", "zh"],
    ["dark", "zh-CN", "zh"],
  ]) {
    test(`${path} in ${language}, ${colorScheme}: no console error, no serious fault`, async () => {
      await inBrowser({ colorScheme, locale }, async (page, seen) => {
        await ask(true);
        await logIn(page);
        await page.goto(`${world.base_url}/admin${path}`);
        await page.waitForTimeout(1500);
        assert.equal(await page.evaluate(() => document.documentElement.lang.slice(0, 2)), language);
        assert.deepEqual(await axeFindings(page), []);
        assert.deepEqual(seen.errors, []);
        const name = `${path.replaceAll("/", "")}-${language}-${colorScheme}.png`;
        await page.screenshot({ path: `${world.images}/${name}` });
      });
    });
  }
}

test("theme and language are switched by hand and stay", async () => {
  await inBrowser({ colorScheme: "light" }, async (page, seen) => {
    await openBoard(page);
    const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const light = await ground();
    await page.click('button[name="theme"][value="dark"]');
    await page.waitForSelector('html[data-theme="dark"]');
    assert.notEqual(await ground(), light);
    await page.click('button[name="language"][value="zh"]');
    await page.waitForSelector('html[lang="zh-Hans"]');
    await page.reload();
    assert.equal(await page.textContent("#wins-title"), "谁胜出");
    assert.equal(await page.getAttribute("html", "data-theme"), "dark");
    assert.deepEqual(seen.errors, []);
  });
});

test("keys: ? shows them, Escape closes, g n goes to the board", async () => {
  await inBrowser({}, async (page, seen) => {
    await openBoard(page);
    await page.keyboard.press("?");
    assert.equal(await page.evaluate(() => document.getElementById("shortcuts").open), true);
    await page.keyboard.press("Escape");
    assert.equal(await page.evaluate(() => document.getElementById("shortcuts").open), false);
    await page.evaluate(() => (globalThis.isSamePage = true));
    await page.keyboard.press("g");
    await Promise.all([page.waitForNavigation(), page.keyboard.press("n")]);
    assert.equal(await page.evaluate(() => globalThis.isSamePage), undefined);
    assert.ok(page.url().endsWith("/admin/now"));
    assert.deepEqual(seen.errors, []);
  });
});

test("on a phone nothing is wider than the screen", async () => {
  await inBrowser({ width: 390, height: 844 }, async (page, seen) => {
    await openBoard(page);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(wide <= 390, `${wide} px wide`);
    assert.deepEqual(await axeFindings(page), []);
    assert.deepEqual(seen.errors, []);
    await page.screenshot({ path: `${world.images}/now-phone.png`, fullPage: true });
    for (const name of ["requests", "endpoints", "policy", "keys", "spend", "batch", "batch/new", "race", "settings"]) {
      await page.goto(`${world.base_url}/admin/${name}`);
      const wide = await page.evaluate(() => document.documentElement.scrollWidth);
      assert.ok(wide <= 390, `${name} is ${wide} px wide`);
    }
  });
});
