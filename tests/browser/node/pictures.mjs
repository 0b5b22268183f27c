// Pictures of the pages for the docs, while applications ask: each theme and language once.

import { inBrowser, logIn, LOOKS, world } from "./driver.mjs";

const SETTLED_MS = 2_500; // the board's lines have drawn what came by then
const RACE_MS = 30_000;
const PROMPTS = {
  en: "Explain in a few sentences why a token bucket is fairer than a fixed window.",
  zh: "用几句话说明：为什么令牌桶限流比固定窗口更公平？",
};

const at = (path) => async (page) => page.goto(`${world.base_url}/admin/${path}`);
const alive = (path) => async (page) => {
  await at(path)(page);
  await page.waitForSelector('#lamp[data-state="on"]');
};

/** A request that only its second endpoint answered: it has most to tell. */
async function openRequest(page) {
  let [found, before] = [null, ""];
  while (found === null && before !== null) {
    const query = new URLSearchParams({ outcome: "ok", before });
    const answer = await page.request.get(`${world.base_url}/admin/api/requests?${query}`);
    const { lines, next } = await answer.json();
    found = lines.find((each) => each.num_attempts > 1) ?? null;
    before = next;
  }
  if (found === null) throw new Error("no request was answered at its second attempt");
  await at(`requests/${found.id}`)(page);
  await page.waitForSelector("#asked-title");
}

async function race(page, language) {
  await at("race")(page);
  for (const box of await page.$$("#runners input")) await box.check();
  await page.fill("#prompt", PROMPTS[language]);
  await page.fill("#max-tokens", "120");
  await page.click("#start");
  await page.waitForFunction(
    () => {
      const states = [...document.querySelectorAll(".lane .state")];
      return states.length > 0 && states.every((each) => /done|failed|stopped/.test(each.className));
    },
    null,
    { timeout: RACE_MS },
  );
}

const PAGES = {
  now: { height: 760, open: alive("now") },
  endpoints: { height: 760, open: alive("endpoints"), isSwapped: true },
  requests: { open: alive("requests") },
  request: { open: openRequest },
  keys: { height: 1200, open: at("keys") },
  key: { height: 1400, open: at(`keys/${world.key}`) },
  spend: { open: at("spend") },
  settings: { open: at("settings") },
  playground: { height: 1000, open: race },
};
const isWanted = (name) => world.names.length === 0 || world.names.includes(name);

// One session for all pictures: else the audit log would show nothing but log-ins.
const cookies = await inBrowser({}, async (page) => {
  await logIn(page);
  return page.context().cookies();
});

async function take(name, options, open) {
  await inBrowser(options, async (page, seen) => {
    await page.context().addCookies(cookies);
    await open(page, options.language);
    await page.waitForTimeout(SETTLED_MS);
    await page.evaluate(() => document.activeElement?.blur());
    await page.screenshot({ path: `${world.images}/dashboard-${name}.png` });
    if (seen.errors.length > 0) throw new Error(`${name}: ${seen.errors.join("; ")}`);
  });
}

for (const [name, { height, open, isSwapped }] of Object.entries(PAGES)) {
  if (!isWanted(name)) continue;
  for (const [idx, look] of LOOKS.entries()) {
    const { colorScheme } = isSwapped ? LOOKS[1 - idx] : look;
    await take(`${name}-${look.language}-${colorScheme}`, { ...look, colorScheme, height }, open);
  }
}
if (isWanted("now")) await take("now-phone", { width: 390, height: 844 }, PAGES.now.open);
