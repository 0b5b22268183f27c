// Pictures of the page Backend for the docs: both themes and languages, while it answers.

import { inBrowser, logIn, LOOKS, world } from "./driver.mjs";

const LOOKED_MS = 6_000; // so that the lines of the last minutes have something to show

async function ask(prompt) {
  const answer = await fetch(`${world.base_url}/v1/chat/completions`, {
    method: "POST",
    headers: { authorization: `Bearer ${world.key}`, "content-type": "application/json" },
    body: JSON.stringify({
      model: world.model,
      temperature: 0,
      max_tokens: world.tokens,
      messages: [{ role: "user", content: prompt }],
    }),
  });
  await answer.text();
  if (answer.status !== 200) throw new Error(`status ${answer.status}`);
}

async function askOn(isOver) {
  for (let idx = 0; !isOver(); idx++) await ask(world.prompts[idx % world.prompts.length]);
}

for (const { colorScheme, locale, language } of LOOKS) {
  await inBrowser({ colorScheme, locale }, async (page) => {
    await logIn(page);
    await page.goto(`${world.base_url}/admin/backend`);
    await page.waitForSelector('#lamp[data-state="on"]');
    let isOver = false;
    const asked = askOn(() => isOver);
    await page.waitForTimeout(LOOKED_MS);
    const path = `${world.images}/dashboard-backend-${language}-${colorScheme}.png`;
    await page.screenshot({ path, fullPage: true });
    isOver = true;
    await asked;
  });
}
