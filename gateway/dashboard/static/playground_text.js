// Figures of a lane, and a lane's request as code. The key is a variable: no secret is shown.

const NONE = "–";
const KEY = "LOOPROUTER_API_KEY";

function seconds(value) {
  if (value === null) return NONE;
  return value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(value < 10 ? 2 : 1)} s`;
}

function rate(value) {
  if (value === null) return NONE;
  return value.toFixed(value >= 100 ? 0 : 1);
}

function money(usd) {
  const value = Number(usd);
  if (value === 0) return "$0";
  if (value >= 1) return `$${value.toFixed(2)}`;
  return `$${value.toFixed(Math.min(9, 2 - Math.floor(Math.log10(value))))}`;
}

/** What a cell shows of a lane's news. */
export function figure(name, news, unpriced) {
  if (name === "ttft") return seconds(news.ttft_s);
  if (name === "rate") return rate(news.tokens_per_s);
  if (name === "time") return seconds(news.duration_s);
  if (name === "tokens") return news.output_tokens ? String(news.output_tokens) : NONE;
  if (news.is_unpriced) return unpriced;
  return news.is_final || news.output_tokens ? money(news.cost_usd) : NONE;
}

function bodyOf({ system, prompt, max_tokens, temperature, model, endpoint }) {
  const messages = [{ role: "user", content: prompt }];
  if (system.trim()) messages.unshift({ role: "system", content: system });
  return {
    model,
    messages,
    max_tokens,
    ...(temperature === null ? {} : { temperature }),
    stream: true,
    // This endpoint and no other: leave it out to be routed.
    provider: { only: [endpoint], allow_fallbacks: false },
  };
}

function inShell(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function curl(asked) {
  return [
    `curl -N ${asked.origin}/v1/chat/completions \\`,
    `  -H "Authorization: Bearer $${KEY}" \\`,
    `  -H "Content-Type: application/json" \\`,
    `  -d ${inShell(JSON.stringify(bodyOf(asked), null, 2))}`,
    "",
  ].join("\n");
}

function python(asked) {
  const { provider, stream: _, ...fields } = bodyOf(asked);
  const lines = Object.entries(fields).map(([name, value]) => `    ${name}=${JSON.stringify(value)},`);
  return `import os

from openai import OpenAI

client = OpenAI(base_url="${asked.origin}/v1", api_key=os.environ["${KEY}"])
stream = client.chat.completions.create(
${lines.join("\n")}
    stream=True,
    extra_body={"provider": {"only": ${JSON.stringify(provider.only)}, "allow_fallbacks": False}},
)
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
print()
`;
}

function javascript(asked) {
  return `const answer = await fetch("${asked.origin}/v1/chat/completions", {
  method: "POST",
  headers: {
    authorization: \`Bearer \${process.env.${KEY}}\`,
    "content-type": "application/json",
  },
  body: JSON.stringify(${JSON.stringify(bodyOf(asked), null, 2).replaceAll("\n", "\n  ")}),
});
if (!answer.ok) throw new Error(await answer.text());
let rest = "";
for await (const part of answer.body.pipeThrough(new TextDecoderStream())) {
  const lines = (rest + part).split("\\n");
  rest = lines.pop();
  for (const line of lines) {
    if (!line.startsWith("data: {")) continue;
    process.stdout.write(JSON.parse(line.slice(6)).choices?.[0]?.delta?.content ?? "");
  }
}
`;
}

/** The request of one lane as curl, Python or JS. */
export function snippet(kind, asked) {
  return { curl, Python: python, JS: javascript }[kind](asked);
}
