// The openai npm package when things fail: error classes, its own retries, and clients that leave.
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { test } from 'node:test';
import OpenAI from 'openai';
import { client, clientOf, providerGet, recordOf, rejected, user, waitUntil, world } from './world.js';

// The goal is 250 ms, on a machine ten times less busy.
const CLOSED_MS_MAX = 2_500;
const LONG = user('hello [[sim tokens=600]]');
const seenBy = async (name) => (await providerGet(name, 'stats')).requests_seen;
const ask = (by = client, model = 'gpt', fields = {}) =>
  by.chat.completions.create({ model, messages: user('hi'), ...fields });

test('each refusal has the class and code that the package knows', async () => {
  const seen = await seenBy('openai-sim');
  for (const [refused, type, status, code] of [
    [() => ask(clientOf('not-a-key')), OpenAI.AuthenticationError, 401, 'invalid_api_key'],
    [() => ask(client, 'nobody'), OpenAI.NotFoundError, 404, 'model_not_found'],
    [() => ask(client, 'gpt', { max_tokens: 'many' }), OpenAI.BadRequestError, 400, undefined],
    [() => ask(clientOf('scoped'), 'claude'), OpenAI.PermissionDeniedError, 403, 'permission_denied'],
    [() => ask(clientOf('poor')), OpenAI.RateLimitError, 429, 'insufficient_quota'],
  ]) {
    const error = await rejected(refused, type);
    assert.equal(error.status, status);
    if (code !== undefined) assert.equal(error.code, code);
    assert.equal(error.requestID, error.headers.get('x-request-id'));
  }
  assert.equal(await seenBy('openai-sim'), seen);
});

test("the upstream's own refusal arrives in its words", async () => {
  const fields = { logprobs: true, top_logprobs: 99, stream: true };
  const error = await rejected(() => ask(client, 'gpt', fields), OpenAI.BadRequestError);

  assert.equal(error.param, 'top_logprobs');
  assert.match(error.message, /must be 0 to 20/);
});

test('a rate limit carries the headers that the package waits by', async () => {
  const limited = clientOf('one-a-minute-node', { maxRetries: 0 });
  await ask(limited);
  const error = await rejected(() => ask(limited), OpenAI.RateLimitError);

  assert.equal(error.code, 'rate_limit_exceeded');
  assert.equal(error.headers.get('x-ratelimit-remaining-requests'), '0');
  assert.ok(Number(error.headers.get('retry-after-ms')) > 0);
});

for (const stream of [false, true]) {
  test(`spent fallbacks make the package send exactly one request (stream: ${stream})`, async () => {
    const seen = await seenBy('broken-sim');
    const error = await rejected(() => ask(client, 'broken', { stream }), OpenAI.InternalServerError);

    assert.equal(error.status, 502);
    assert.equal(error.headers.get('x-should-retry'), 'false');
    assert.equal(await seenBy('broken-sim'), seen + 1);
    const record = await recordOf(error.requestID);
    assert.equal(record.cost_nanos, 0);
  });
}

test('an idempotency key is answered once, and refuses another body', async () => {
  const headers = { 'Idempotency-Key': randomUUID() };
  const body = { model: 'gpt', messages: user('hi') };
  const first = await client.chat.completions.create(body, { headers });
  const seen = await seenBy('openai-sim');
  const second = await client.chat.completions.create(body, { headers }).withResponse();

  assert.deepEqual(second.data, first);
  assert.equal(second.response.headers.get('x-looprouter-idempotent-replay'), 'true');
  assert.equal(await seenBy('openai-sim'), seen);
  const other = { ...body, messages: user('other') };
  await rejected(
    () => client.chat.completions.create(other, { headers }),
    OpenAI.UnprocessableEntityError,
  );
});

for (const model of ['slow-gpt', 'slow-claude']) {
  const provider = model.replace('gpt', 'openai').replace('claude', 'anthropic');
  const isClosed = async () => (await providerGet(provider, 'stats')).in_flight === 0;
  const lastLine = async () => (await providerGet(provider, 'invoice')).lines.at(-1);

  test(`${model}: a stream that breaks off is an error, never an end`, async () => {
    const messages = user('hi [[sim tokens=30 fault=cut_mid_stream after=6]]');
    const finishes = [];
    const error = await rejected(async () => {
      for await (const chunk of await ask(client, model, { messages, stream: true })) {
        finishes.push(chunk.choices[0].finish_reason);
      }
    }, OpenAI.APIError);

    assert.equal(error.code, 'stream_interrupted');
    assert.ok(finishes.length > 1);
    assert.ok(finishes.every((finish) => finish === null));
  });

  test(`${model}: aborting a stream closes upstream, and is paid for what came`, async () => {
    const { data, response } = await client.chat.completions
      .create({ model, messages: LONG, stream: true })
      .withResponse();
    let taken = 0;
    for await (const chunk of data) {
      taken += Boolean(chunk.choices[0].delta.content);
      if (taken === 20) break; // leaving the loop aborts the request
    }

    await waitUntil(isClosed, 'upstream to close', CLOSED_MS_MAX);
    const line = await lastLine();
    assert.equal(line.id, response.headers.get('x-upstream-request-id'));
    assert.equal(line.ended, 'client_gone');
    assert.ok(line.output >= 20 && line.output < 600);
    const record = await recordOf(response.headers.get('x-looprouter-request-id'));
    assert.equal(record.error, 'client_gone');
    assert.equal(record.is_estimated, true);
    assert.ok(Math.abs(record.usage.output - line.output) <= 0.3 * line.output + 3);
  });

  test(`${model}: an AbortController ends a plain request, upstream too`, async () => {
    const leaving = new AbortController();
    const body = { model, messages: LONG };
    const asked = client.chat.completions.create(body, { signal: leaving.signal });
    const failed = rejected(() => asked, OpenAI.APIUserAbortError);
    await waitUntil(async () => !(await isClosed()), 'the request to run');
    leaving.abort();
    await failed;

    await waitUntil(isClosed, 'upstream to close', CLOSED_MS_MAX);
  });
}

test('the world has the providers that these tests look at', () => {
  assert.ok(['slow-openai', 'slow-anthropic', 'broken-sim'].every((name) => world.providers[name]));
});
