// The openai npm package on every surface, plain and streamed. `gpt` is served in its own dialect,
// `claude` in Anthropic's, so there all is translated.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import OpenAI from 'openai';
import { makeParseableResponseFormat, makeParseableTextFormat } from 'openai/lib/parser';
import { checkPaid, client, clientOf, collected, rejected, textOf, user } from './world.js';

const DIALECTS = ['gpt', 'claude'];
const PARAMETERS = {
  type: 'object',
  properties: { city: { type: 'string' }, unit: { enum: ['C', 'F'] } },
  required: ['city', 'unit'],
  additionalProperties: false,
};
const TOOLS = ['get_weather', 'get_time'].map((name) => ({
  type: 'function',
  function: { name, description: 'A tool.', parameters: PARAMETERS },
}));
const PIXEL =
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC';

for (const model of DIALECTS) {
  test(`${model}: a plain chat answer is whole, paid and labelled`, async () => {
    const { data, response, request_id } = await client.chat.completions
      .create({ model, messages: user('hello') })
      .withResponse();

    assert.match(data.choices[0].message.content, /^\[simulated\]/);
    assert.equal(data.choices[0].finish_reason, 'stop');
    assert.equal(data.usage.total_tokens, data.usage.prompt_tokens + data.usage.completion_tokens);
    assert.equal(data._request_id, request_id);
    const record = await checkPaid(response, { model, surface: 'chat' });
    assert.equal(record.usage.output, data.usage.completion_tokens);
  });

  test(`${model}: a chat stream carries the plain text, and usage only if asked for`, async () => {
    const asked = { model, messages: user('the same'), temperature: 0 };
    const plain = await client.chat.completions.create(asked);

    const silent = await collected(await client.chat.completions.create({ ...asked, stream: true }));
    const { data, response } = await client.chat.completions
      .create({ ...asked, stream: true, stream_options: { include_usage: true } })
      .withResponse();
    const told = await collected(data);

    assert.equal(textOf(silent), plain.choices[0].message.content);
    assert.equal(textOf(told), plain.choices[0].message.content);
    assert.ok(silent.every((chunk) => chunk.choices.length && !chunk.usage));
    assert.deepEqual(told.filter((chunk) => chunk.usage), [told.at(-1)]);
    assert.deepEqual(told.at(-1).choices, []);
    assert.ok(told.at(-1).usage.cost > 0);
    await checkPaid(response, { model, surface: 'chat', stream: true });
  });

  test(`${model}: parallel tool calls, plain, streamed and answered`, async () => {
    const messages = user('call get_weather and get_time');
    const asked = { model, messages, tools: TOOLS, temperature: 0 };

    const plain = await client.chat.completions.create(asked);
    const stream = client.chat.completions.stream(asked);
    const streamed = await stream.finalChatCompletion();

    const calls = plain.choices[0].message.tool_calls;
    assert.equal(plain.choices[0].finish_reason, 'tool_calls');
    assert.deepEqual(calls.map((call) => call.function.name), ['get_weather', 'get_time']);
    assert.equal(new Set(calls.map((call) => call.id)).size, 2);
    assert.deepEqual(
      streamed.choices[0].message.tool_calls.map(({ id, function: { name, arguments: args } }) => [id, name, args]),
      calls.map(({ id, function: { name, arguments: args } }) => [id, name, args]),
    );
    const results = calls.map(({ id }) => ({ role: 'tool', tool_call_id: id, content: 'result' }));
    const { data, response } = await client.chat.completions
      .create({ ...asked, messages: [...messages, plain.choices[0].message, ...results] })
      .withResponse();
    assert.equal(data.choices[0].finish_reason, 'stop');
    await checkPaid(response, { model, surface: 'chat' });
  });

  test(`${model}: the tool runner loops to its end`, async () => {
    const seen = [];
    const runner = client.chat.completions.runTools({
      model,
      messages: user('call get_weather'),
      stream: true,
      tools: [
        {
          type: 'function',
          function: {
            name: 'get_weather',
            description: 'A tool.',
            parameters: PARAMETERS,
            parse: JSON.parse,
            function: ({ unit }) => {
              seen.push(unit);
              return 'sunny';
            },
          },
        },
      ],
    });

    assert.match(await runner.finalContent(), /^\[simulated\]/);
    assert.equal(seen.length, 1);
    assert.ok(['C', 'F'].includes(seen[0]));
  });

  test(`${model}: structured output is parsed, plain and streamed`, async () => {
    const response_format = makeParseableResponseFormat(
      { type: 'json_schema', json_schema: { name: 'place', schema: PARAMETERS, strict: true } },
      JSON.parse,
    );

    const plain = await client.chat.completions.parse({ model, messages: user('go'), response_format });
    const stream = client.chat.completions.stream({ model, messages: user('go'), response_format });
    const streamed = await stream.finalChatCompletion();

    for (const each of [plain, streamed]) {
      assert.ok(['C', 'F'].includes(each.choices[0].message.parsed.unit));
    }
  });

  test(`${model}: reasoning, images and limits`, async () => {
    const content = [
      { type: 'text', text: 'what is this? [[sim tokens=90]]' },
      { type: 'image_url', image_url: { url: `data:image/png;base64,${PIXEL}` } },
    ];
    const { data, response } = await client.chat.completions
      .create({
        model,
        messages: [{ role: 'user', content }],
        reasoning_effort: 'low',
        max_completion_tokens: 40,
      })
      .withResponse();

    assert.equal(data.choices[0].finish_reason, 'length');
    assert.match(data.choices[0].message.reasoning_content, /^\[simulated\]/);
    assert.equal(data.usage.completion_tokens_details.reasoning_tokens, 24);
    assert.ok(data.usage.prompt_tokens > 258);
    // The invoice keeps reasoning apart; the record's `output` is the rest.
    const record = await checkPaid(response, { model, surface: 'chat' });
    assert.equal(record.usage.reasoning, 24);
  });
}

test('logprobs, several choices, seed, stop and unknown fields pass', async () => {
  const asked = { model: 'gpt', messages: user('hi'), seed: 4, max_tokens: 30 };
  const { data, response } = await client.chat.completions
    .create({ ...asked, n: 2, logprobs: true, top_logprobs: 2, vendor_knob: [1] })
    .withResponse();
  const whole = (await client.chat.completions.create(asked)).choices[0].message.content;
  const word = whole.split(' ').at(-2);
  const stopped = await client.chat.completions.create({ ...asked, stop: word });

  assert.equal(data.choices.length, 2);
  for (const { logprobs, message } of data.choices) {
    assert.equal(logprobs.content.map(({ token }) => token).join(''), message.content);
  }
  assert.equal(stopped.choices[0].message.content, whole.slice(0, whole.indexOf(word)));
  await checkPaid(response, { model: 'gpt', surface: 'chat' });
});

test('completions, plain and streamed', async () => {
  const asked = { model: 'gpt', prompt: 'Once', temperature: 0, max_tokens: 25 };
  const plain = await client.completions.create(asked);
  const { data, response } = await client.completions
    .create({ ...asked, stream: true, stream_options: { include_usage: true } })
    .withResponse();
  const chunks = await collected(data);

  const text = chunks.flatMap((chunk) => chunk.choices.map((choice) => choice.text)).join('');
  assert.equal(text, plain.choices[0].text);
  assert.equal(chunks.at(-1).usage.completion_tokens, plain.usage.completion_tokens);
  await checkPaid(response, { model: 'gpt', surface: 'completions', stream: true });
});

test('responses, plain, streamed, with the stream helper and parsed', async () => {
  const asked = { model: 'gpt', input: 'hello', temperature: 0 };
  const plain = await client.responses.create(asked).withResponse();
  const events = await collected(await client.responses.create({ ...asked, stream: true }));
  const helper = client.responses.stream(asked);
  const kinds = [];
  helper.on('event', (event) => kinds.push(event.type));
  const final = await helper.finalResponse();
  const format = makeParseableTextFormat(
    { type: 'json_schema', name: 'place', schema: PARAMETERS, strict: true },
    JSON.parse,
  );
  const parsed = await client.responses.parse({ model: 'gpt', input: 'go', text: { format } });

  assert.match(plain.data.output_text, /^\[simulated\]/);
  const deltas = events.filter((event) => event.type === 'response.output_text.delta');
  assert.equal(deltas.map((event) => event.delta).join(''), plain.data.output_text);
  assert.deepEqual(events.map((event) => event.sequence_number), [...events.keys()]);
  assert.equal(final.output_text, plain.data.output_text);
  assert.equal(kinds.at(-1), 'response.completed');
  assert.ok(['C', 'F'].includes(parsed.output_parsed.unit));
  await checkPaid(plain.response, { model: 'gpt', surface: 'responses' });
});

test('responses: tool calls and their results', async () => {
  const input = user('call get_weather and get_time');
  const tools = TOOLS.map(({ function: tool }) => ({ type: 'function', strict: true, ...tool }));
  const first = await client.responses.create({ model: 'gpt', input, tools });
  const calls = first.output.filter((item) => item.type === 'function_call');
  const results = calls.map(({ call_id }) => ({ type: 'function_call_output', call_id, output: 'x' }));

  const { data, response } = await client.responses
    .create({ model: 'gpt', input: [...input, ...first.output, ...results], tools })
    .withResponse();

  assert.deepEqual(calls.map((call) => call.name), ['get_weather', 'get_time']);
  assert.match(data.output_text, /^\[simulated\]/);
  await checkPaid(response, { model: 'gpt', surface: 'responses' });
});

test('embeddings as floats and as base64 are the same', async () => {
  const asked = { model: 'gpt', input: ['a', 'bb'], dimensions: 8 };
  const { data, response } = await client.embeddings
    .create({ ...asked, encoding_format: 'float' })
    .withResponse();
  const coded = await client.embeddings.create(asked); // the SDK asks for base64 and decodes it

  assert.deepEqual(data.data.map(({ embedding }) => embedding.length), [8, 8]);
  data.data.forEach(({ embedding }, place) =>
    embedding.forEach((value, index) =>
      assert.ok(Math.abs(value - coded.data[place].embedding[index]) < 1e-6),
    ),
  );
  await checkPaid(response, { model: 'gpt', surface: 'embeddings' });
});

test('models are listed and found', async () => {
  const listed = await collected(client.models.list());
  assert.ok(listed.some((model) => model.id === 'claude'));
  const model = await client.models.retrieve('gpt');
  assert.equal(model.looprouter.endpoints[0].prices[0].input, '0.137');
  await rejected(() => client.models.retrieve('nobody'), OpenAI.NotFoundError);
  assert.deepEqual((await collected(clientOf('scoped').models.list())).map(({ id }) => id), ['gpt']);
});

test('surfaces that have no translation are refused clearly', async () => {
  for (const ask of [
    () => client.completions.create({ model: 'claude', prompt: 'Once' }),
    () => client.responses.create({ model: 'claude', input: 'hi', stream: true }),
    () => client.embeddings.create({ model: 'claude', input: 'hi' }),
  ]) {
    const error = await rejected(ask, OpenAI.BadRequestError);
    assert.match(error.message, /anthropic-sim\/claude-sim/);
  }
});
