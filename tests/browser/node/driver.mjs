// What every browser test shares: Chromium, one logged-in page, and what went wrong in it.

import { chromium } from "playwright-core";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const axeSource = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

export const world = JSON.parse(process.env.LOOPROUTER_WORLD ?? "{}");

/** What pictures are taken in: each theme once, each language once. */
export const LOOKS = [
  { colorScheme: "light", locale: "en-GB", language: "en" },
  { colorScheme: "dark", locale: "zh-CN", language: "zh" },
];

/** Run `work(page, seen)` in a fresh profile; `seen` gathers console errors and requests. */
export async function inBrowser(options, work) {
  const browser = await chromium.launch({
    executablePath: world.chromium,
    args: ["--no-sandbox", "--disable-dev-shm-usage", "--force-device-scale-factor=1"],
  });
  try {
    const context = await browser.newContext({
      viewport: { width: options.width ?? 1440, height: options.height ?? 900 },
      locale: options.locale ?? "en-GB",
      colorScheme: options.colorScheme ?? "light",
      reducedMotion: "reduce",
    });
    const page = await context.newPage();
    const seen = { errors: [], requests: [] };
    page.on("console", (message) => {
      if (["error", "warning"].includes(message.type())) seen.errors.push(message.text());
    });
    page.on("pageerror", (error) => seen.errors.push(String(error)));
    page.on("request", (request) => seen.requests.push(request.url()));
    return await work(page, seen);
  } finally {
    await browser.close();
  }
}

export async function logIn(page, { name, password } = { name: world.admin, password: world.password }) {
  await page.goto(`${world.base_url}/admin/login`);
  await page.fill('input[name="name"]', name);
  await page.fill('input[name="password"]', password);
  await Promise.all([
    page.waitForURL((url) => !url.pathname.endsWith("/login")),
    page.click("main form button"),
  ]);
}

/** Serious and critical findings of axe-core. It is evaluated, not added as a script: the pages' CSP holds. */
export async function axeFindings(page) {
  await page.evaluate(axeSource);
  const { violations } = await page.evaluate(() =>
    globalThis.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"] }),
  );
  return violations
    .filter(({ impact }) => ["serious", "critical"].includes(impact))
    .map(({ id, nodes }) => `${id}: ${nodes.map(({ target }) => target).join(" ")}`);
}
