// What every suite shares: the SDK, changed only in base URL and key, and looks behind the scenes.
import assert from 'node:assert/strict';
import OpenAI from 'openai';

export const world = JSON.parse(process.env.LOOPROUTER_WORLD ?? '{}');
assert.ok(world.base_url, 'LOOPROUTER_WORLD is not set: run this by pytest tests/e2e/test_node_sdk.py');

export const WAIT_MS = 20_000;
export const user = (text) => [{ role: 'user', content: text }];

export function clientOf(key = 'main', options = {}) {
  return new OpenAI({ baseURL: `${world.base_url}/v1`, apiKey: world.keys[key] ?? key, ...options });
}

export const client = clientOf();

/** Milliseconds until `holds` gave a truthy value; fails when it does not in time. */
export async function waitUntil(holds, what, waitMs = WAIT_MS) {
  const began = performance.now();
  while (!(await holds())) {
    assert.ok(performance.now() - began < waitMs, `waited ${waitMs} ms for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return performance.now() - began;
}

/** GET /v1/requests/{id}, through the SDK too, as soon as the request has been recorded. */
export async function recordOf(requestId, key = 'main') {
  let record;
  await waitUntil(async () => {
    try {
      record = await clientOf(key).get(`/requests/${requestId}`);
    } catch (error) {
      assert.ok(error instanceof OpenAI.NotFoundError, error);
    }
    return record;
  }, `the record of ${requestId}`);
  return record;
}

/** The record agrees with the answer's headers and was paid in full, exactly. */
export async function checkPaid(response, { model, surface, stream = false }) {
  const headers = response.headers;
  assert.equal(headers.get('x-request-id'), headers.get('x-looprouter-request-id'));
  const record = await recordOf(headers.get('x-looprouter-request-id'));
  assert.equal(record.status, 200);
  assert.equal(record.model, model);
  assert.equal(record.surface, surface);
  assert.equal(record.stream, stream);
  assert.equal(record.endpoint_id, headers.get('x-looprouter-endpoint'));
  assert.equal(record.is_estimated, false);
  const line = await invoiceLine(headers.get('x-upstream-request-id'));
  assert.equal(record.cost_nanos, line.cost_nanos);
  assert.equal(record.billed_nanos, line.cost_nanos);
  assert.equal(record.usage.input ?? 0, line.input);
  assert.equal(record.usage.output ?? 0, line.output);
  if (headers.has('x-looprouter-cost')) {
    assert.equal(Math.round(Number(headers.get('x-looprouter-cost')) * 1e9), line.cost_nanos);
  }
  return record;
}

export async function providerGet(name, path) {
  const answer = await fetch(`${world.providers[name]}/sim/${path}`);
  assert.equal(answer.status, 200);
  return answer.json();
}

export async function invoiceLine(upstreamId) {
  let line;
  await waitUntil(async () => {
    const invoices = await Promise.all(
      Object.keys(world.providers).map((name) => providerGet(name, 'invoice')),
    );
    line = invoices.flatMap((invoice) => invoice.lines).find((each) => each.id === upstreamId);
    return line;
  }, `an invoice line ${upstreamId}`);
  return line;
}

export async function collected(stream) {
  const items = [];
  for await (const item of stream) items.push(item);
  return items;
}

export const textOf = (chunks) =>
  chunks.flatMap((chunk) => chunk.choices.map((choice) => choice.delta?.content ?? '')).join('');

/** The error that `ask` is rejected with; it must be of `type`. */
export async function rejected(ask, type) {
  let caught;
  await assert.rejects(ask, (error) => {
    caught = error;
    return true;
  });
  assert.ok(caught instanceof type, `${caught?.constructor?.name}: ${caught?.message}`);
  return caught;
}
