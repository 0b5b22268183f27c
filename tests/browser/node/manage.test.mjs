// Keys & budgets, Requests and Audit & settings in a real browser: what is done there holds outside.

import assert from "node:assert/strict";
import { test } from "node:test";
import { axeFindings, inBrowser, logIn, world } from "./driver.mjs";

const LATE_MS = 15_000;
const HOSTILE = "<img src=x onerror=alert(1)>";

async function ask(key, fields = {}, headers = {}) {
  const answer = await fetch(`${world.base_url}/v1/chat/completions`, {
    method: "POST",
    headers: { authorization: `Bearer ${key}`, "content-type": "application/json", ...headers },
    body: JSON.stringify({ model: "chat", max_tokens: 12, messages: [{ role: "user", content: "Hello" }], ...fields }),
  });
  await answer.text();
  return { status: answer.status, id: answer.headers.get("x-looprouter-request-id") ?? "" };
}

async function createKey(page, name) {
  await page.goto(`${world.base_url}/admin/keys`);
  await page.locator("summary", { hasText: "Create a key" }).click();
  await page.fill("#f-name", name);
  await page.fill("#f-usd", "5");
  await page.selectOption("#f-period", "month");
  await page.locator("details button.primary").click();
  return (await page.textContent("#new-key")).trim();
}

test("a key is created, shown once, changed, rotated and revoked; the next call tells", async () => {
  await inBrowser({}, async (page, seen) => {
    await logIn(page);
    const key = await createKey(page, HOSTILE);
    assert.match(key, /^lr-/);
    await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
    await page.click('button[data-copy="new-key"]');
    await page.locator("button", { hasText: "Copied" }).waitFor();
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), key);
    assert.equal((await ask(key)).status, 200);
    await page.goto(`${world.base_url}/admin/keys`);
    assert.ok(!(await page.content()).includes(key));
    await page.locator("#keys-rows a", { hasText: HOSTILE }).click();
    assert.equal(await page.textContent("h1"), HOSTILE);
    assert.equal(await page.locator("figure.burn polyline.left").count(), 1);
    assert.equal(await page.locator("svg.bars rect").count(), 30);

    await page.fill("#f-models", "another");
    await page.locator("form button.primary", { hasText: "Save" }).click();
    await page.waitForLoadState();
    assert.equal((await ask(key)).status, 403);
    await page.fill("#f-models", "");
    await page.locator("form button.primary", { hasText: "Save" }).click();
    await page.waitForLoadState();
    assert.equal((await ask(key)).status, 200);

    await page.locator("button", { hasText: "Rotate the secret" }).click();
    const fresh = (await page.textContent("#new-key")).trim();
    assert.equal((await ask(key)).status, 401);
    assert.equal((await ask(fresh)).status, 200);
    await page.locator("summary", { hasText: "Revoke" }).click();
    await page.locator("button.danger", { hasText: "Revoke" }).click();
    await page.locator(".tag.bad", { hasText: "revoked" }).waitFor();
    assert.equal((await ask(fresh)).status, 401);
    assert.deepEqual(seen.errors, []);
  });
});

test("a budget that is spent refuses, is shown as spent, and ended lets go", async () => {
  await inBrowser({}, async (page, seen) => {
    await logIn(page);
    const key = await createKey(page, "thrifty");
    await page.goto(`${world.base_url}/admin/keys`);
    await page.locator("#keys-rows a", { hasText: "thrifty" }).click();
    await page.locator('form[action$="/budgets"] input[name="limit_usd"]').fill("0.0000001");
    await page.locator('form[action$="/budgets"] select').selectOption("day");
    await page.locator("button", { hasText: "Set the budget" }).click();
    await page.waitForLoadState();
    assert.equal(await page.locator("figure.burn").count(), 2);
    const refused = await ask(key);
    assert.ok([402, 429].includes(refused.status), String(refused.status));
    await page.locator("tr", { hasText: "a day" }).locator("button", { hasText: "End" }).click();
    await page.waitForLoadState();
    assert.equal(await page.locator("figure.burn").count(), 1);
    assert.equal((await ask(key)).status, 200);
    assert.deepEqual(seen.errors, []);
  });
});

test("the log takes in what comes, is filtered to a key, and a request opens with its reasons", async () => {
  await inBrowser({}, async (page, seen) => {
    await logIn(page);
    await page.goto(`${world.base_url}/admin/requests`);
    await page.waitForSelector('#lamp[data-state="on"]');
    await page.evaluate(() => (globalThis.isSamePage = true));
    await ask(world.key, { stream: true }, { "x-looprouter-tags": "nightly" });
    const row = page.locator("#log tr", { has: page.locator(".tag", { hasText: "nightly" }) }).first();
    await row.waitFor({ timeout: LATE_MS });
    assert.equal(await page.evaluate(() => globalThis.isSamePage), true);

    await row.locator('a[href*="?key="]').click();
    await page.waitForURL(/\?key=/);
    assert.notEqual(await page.inputValue("#f-key"), "");
    assert.ok((await page.locator("#log tr").count()) >= 1);
    await page.locator("#log tr", { hasText: "nightly" }).locator("th a").click();
    await page.waitForSelector("#asked-title");
    assert.equal(await page.locator("svg.waterfall rect").count(), 1);
    assert.ok((await page.locator("th .tag.good", { hasText: "chosen" }).count()) === 1);
    assert.match(await page.locator(".pairs").textContent(), /nightly/);
    assert.ok((await page.content()).includes("chosen"));
    assert.ok(!(await page.content()).includes("Hello"));
    await page.waitForFunction(
      () => {
        const empty = document.querySelector('section[aria-labelledby="entries-title"] .empty');
        if (empty) location.reload();
        return !empty;
      },
      null,
      { timeout: LATE_MS, polling: 1000 },
    );
    assert.deepEqual(seen.errors, []);
  });
});

test("an owner makes a viewer, who sees all and may change nothing, and shuts them out", async () => {
  await inBrowser({}, async (page, seen) => {
    await logIn(page);
    await page.goto(`${world.base_url}/admin/settings`);
    await page.fill("#a-name", "vera");
    await page.selectOption("#a-role", "viewer");
    await page.locator("button.primary", { hasText: "Create" }).click();
    const password = (await page.textContent("#new-password")).trim();

    await inBrowser({}, async (other, seenByOther) => {
      await logIn(other, { name: "vera", password });
      for (const path of ["keys", "policy", "endpoints", "settings"]) {
        await other.goto(`${world.base_url}/admin/${path}`);
        const writes = await other.locator('main form[method="post"] button, main button[form]').count();
        assert.equal(writes, path === "settings" ? 1 : 0, path); // one's own password
      }
      const statuses = await other.evaluate(async () => {
        const { csrf } = await (await fetch("/admin/api/session")).json();
        const send = async (method, path, body) =>
          (
            await fetch(`/admin/api/${path}`, {
              method,
              headers: { "content-type": "application/json", "x-csrf-token": csrf },
              body: JSON.stringify(body),
            })
          ).status;
        return [
          await send("POST", "keys", { name: "mine" }),
          await send("PUT", "settings/retention", { requests: 1 }),
          await send("POST", "endpoints/pause", { endpoint: "simulated-fast/simulated-chat" }),
        ];
      });
      assert.deepEqual(statuses, [403, 403, 403]);
      const row = page.locator("tr", { has: page.locator("th", { hasText: "vera" }) });
      await page.goto(`${world.base_url}/admin/settings`);
      await row.locator("button.danger").click();
      await row.locator(".tag.bad").waitFor();
      await other.goto(`${world.base_url}/admin/keys`);
      assert.ok(other.url().includes("/admin/login"), other.url());
      assert.deepEqual(
        seenByOther.errors.filter((error) => !/status of 403/.test(error)),
        [],
      );
    });
    assert.deepEqual(seen.errors, []);
  });
});

test("an age is changed, told with before and after, and a wrong one is refused with its reason", async () => {
  await inBrowser({}, async (page, seen) => {
    await logIn(page);
    await page.goto(`${world.base_url}/admin/settings`);
    await page.fill('input[name="minutes"]', "3");
    await page.locator("#kept button.primary").click();
    await page.waitForLoadState();
    assert.equal(await page.inputValue('input[name="minutes"]'), "3");
    await page.fill("#q-action", "retention");
    await page.locator("button", { hasText: "Filter" }).click();
    await page.waitForURL(/action=retention/);
    const row = page.locator("tbody tr").first();
    assert.match(await row.textContent(), /admin:admin\s*retention\.change/);
    assert.match(await row.textContent(), /minutes: 1 → 3/);
    await page.fill('input[name="minutes"]', "400");
    await page.locator("#kept button.primary").click();
    assert.match(await page.textContent("p.problem"), /minutes can be kept 1 to 31 days/);
    assert.deepEqual(
      seen.errors.filter((error) => !/status of 400/.test(error)),
      [],
    );
  });
});

for (const [colorScheme, locale, language] of [
  ["light", "en-GB", "en"],
  ["dark", "zh-CN", "zh"],
]) {
  test(`in ${language}, ${colorScheme}: no console error, no serious fault, nothing too wide`, async () => {
    await inBrowser({ colorScheme, locale }, async (page, seen) => {
      await ask(world.key, { stream: true }, { "x-looprouter-tags": "nightly,team.a" });
      await logIn(page);
      await page.goto(`${world.base_url}/admin/requests`);
      const opened = await page.locator("#log th a").first().getAttribute("href");
      await page.goto(`${world.base_url}/admin/keys`);
      const key = await page.locator("#keys-rows a", { hasText: "thrifty" }).getAttribute("href");
      for (const [name, path] of [
        ["keys", "/admin/keys"],
        ["key", key],
        ["settings", "/admin/settings"],
        ["request", opened],
        ["requests", "/admin/requests"],
      ]) {
        await page.goto(`${world.base_url}${path}`);
        await page.waitForTimeout(300);
        assert.equal(await page.evaluate(() => document.documentElement.lang.slice(0, 2)), language);
        assert.deepEqual(await axeFindings(page), [], name);
        const width = await page.evaluate(() => document.documentElement.scrollWidth);
        assert.ok(width <= 1440, `${name}: ${width} px wide`);
        await page.screenshot({ path: `${world.images}/${name}-${language}-${colorScheme}.png` });
      }
      assert.deepEqual(seen.errors, []);
    });
  });
}

test("on a phone the log and an opened request are no wider than the screen", async () => {
  await inBrowser({ width: 390, height: 844 }, async (page, seen) => {
    await logIn(page);
    await page.goto(`${world.base_url}/admin/requests`);
    for (const step of ["log", "request"]) {
      if (step === "request") {
        await page.locator("#log th a").first().click();
        await page.waitForSelector("#asked-title");
      }
      const width = await page.evaluate(() => document.documentElement.scrollWidth);
      assert.ok(width <= 390, `${step}: ${width} px wide`);
      assert.deepEqual(await axeFindings(page), []);
    }
    assert.deepEqual(seen.errors, []);
  });
});
