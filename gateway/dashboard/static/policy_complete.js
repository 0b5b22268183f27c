// What may be written where the caret is, by the policy's JSON Schema. Pure: no DOM, so that Node
// tests it. It knows block style, and flow style as far as it begins on the caret's line.

const ITEM = Symbol("item of a list");
const KEY = /^("(?:[^"\\]|\\.)*"|'[^']*'|[^\s#&*!|>%@`{}[\],:"'][^#{}[\],:]*?)\s*:(?=\s|$)/;
const NAMES_MAX = 200;

/** The entries that a line opens: [{ indent, key }], `key` is ITEM for a dash. */
function entriesOf(line) {
  const found = [];
  let at = line.length - line.trimStart().length;
  let rest = line.slice(at);
  while (/^-(\s|$)/.test(rest)) {
    found.push({ indent: at, key: ITEM });
    const inner = rest.slice(1).trimStart();
    at += rest.length - inner.length;
    rest = inner;
  }
  const key = KEY.exec(rest);
  if (key) found.push({ indent: at, key: unquoted(key[1]), rest: rest.slice(key[0].length).trim() });
  return found;
}

function unquoted(text) {
  return /^["']/.test(text) ? text.slice(1, -1) : text.trim();
}

function isBlank(line) {
  const text = line.trim();
  return text === "" || text.startsWith("#");
}

/** Keys from the root down to what holds a place at `indent` on line `row`; `isItem`: a dash there. */
function pathAbove(lines, row, indent, isItem) {
  const path = [];
  let limit = isItem ? indent + 1 : indent; // a list may stand as far left as its key
  let wantsKey = isItem;
  for (let idx = row - 1; idx >= 0 && limit > 0; idx -= 1) {
    if (isBlank(lines[idx])) continue;
    const entries = entriesOf(lines[idx]);
    for (let n = entries.length - 1; n >= 0; n -= 1) {
      const { indent: at, key } = entries[n];
      if (at >= limit || (wantsKey && key === ITEM)) continue;
      path.unshift(key);
      wantsKey = key === ITEM;
      limit = wantsKey ? at + 1 : at;
    }
    const first = lines[idx].length - lines[idx].trimStart().length;
    if (entries.length === 0 && first < limit) limit = first;
  }
  return path;
}

/** Keys already there in the block mapping at `indent` around line `row`. */
function keysBeside(lines, row, indent) {
  const found = new Set();
  for (const step of [-1, 1]) {
    for (let idx = row + step; idx >= 0 && idx < lines.length; idx += step) {
      if (isBlank(lines[idx])) continue;
      const first = lines[idx].length - lines[idx].trimStart().length;
      const own = entriesOf(lines[idx]).find(({ indent: at, key }) => at === indent && key !== ITEM);
      if (own) found.add(own.key);
      if (first < indent) break; // also the dash that the mapping began behind
    }
  }
  return found;
}

/** Walks the flow collections of `text` up to its end: the open ones, each with its keys. */
function openFlows(text) {
  const open = [];
  let key = null;
  let start = 0;
  let quote = "";
  for (let idx = 0; idx < text.length; idx += 1) {
    const char = text[idx];
    if (quote) {
      if (char === "\\" && quote === '"') idx += 1;
      else if (char === quote) quote = "";
    } else if ((char === '"' || char === "'") && text.slice(start, idx).trim() === "") {
      quote = char;
    } else if (char === "{" || char === "[") {
      open.push({ kind: char, key, keys: new Set() });
      key = null;
      start = idx + 1;
    } else if (char === "}" || char === "]") {
      open.pop();
      key = null;
      start = idx + 1;
    } else if (char === ",") {
      key = null;
      start = idx + 1;
    } else if (char === ":" && /\s|$/.test(text.slice(idx + 1, idx + 2)) && open.at(-1)?.kind === "{" && key === null) {
      key = unquoted(text.slice(start, idx).trim());
      open.at(-1).keys.add(key);
      start = idx + 1;
    }
  }
  return { open, key, typed: text.slice(start).trimStart(), isQuoted: quote !== "" };
}

/** Where the caret is: `path` to the mapping or value, what is typed, and which keys are there. */
export function contextAt(text, offset) {
  const before = text.slice(0, offset);
  const row = before.split("\n").length - 1;
  const lines = text.split("\n");
  const line = before.slice(before.lastIndexOf("\n") + 1);
  if (/(^|\s)#/.test(line.replace(/"[^"]*"|'[^']*'/g, ""))) return null;
  const brace = line.search(/[{[]/);
  const head = brace < 0 ? line : line.slice(0, brace);
  const indent = head.length - head.trimStart().length;
  const own = entriesOf(head.trimEnd() === "" ? head : head);
  const opening = own.length > 0 ? own[0] : { indent, key: null };
  const path = pathAbove(lines, row, opening.indent, opening.key === ITEM);
  path.push(...own.map(({ key }) => key));
  if (brace >= 0) {
    const { open, key, typed, isQuoted } = openFlows(line.slice(brace));
    if (isQuoted) return null;
    if (open.length > 0) {
      open.forEach((flow, idx) => {
        if (idx > 0) path.push(open[idx - 1].kind === "[" ? ITEM : flow.key);
      });
      const inner = open.at(-1);
      if (inner.kind === "[") return { kind: "value", path: [...path, ITEM], typed, keys: inner.keys };
      if (key !== null) return { kind: "value", path: [...path, key], typed, keys: inner.keys };
      return { kind: "key", path, typed, keys: inner.keys };
    }
    return null;
  }
  const last = own.at(-1);
  if (last && last.key !== ITEM) return { kind: "value", path, typed: last.rest, keys: new Set() };
  const typed = head.slice(last ? last.indent + 1 : indent).trimStart();
  const column = head.length - typed.length;
  return { kind: last ? "either" : "key", path, typed, keys: keysBeside(lines, row, column) };
}

function resolved(schema, node) {
  if (!node) return [];
  if (node.$ref) return resolved(schema, { ...node, ...schema.$defs[node.$ref.split("/").at(-1)], $ref: undefined });
  if (node.anyOf) return node.anyOf.flatMap((each) => resolved(schema, { description: node.description, ...each }));
  return [node];
}

/** The schema's nodes that a path leads to. */
export function nodesAt(schema, path) {
  let nodes = resolved(schema, schema);
  for (const key of path) {
    nodes = nodes.flatMap((node) => {
      if (key === ITEM) return resolved(schema, node.items);
      const open = typeof node.additionalProperties === "object" ? node.additionalProperties : null;
      return resolved(schema, node.properties?.[key] ?? open);
    });
  }
  return nodes;
}

function typeOf(schema, node) {
  const words = resolved(schema, node).flatMap((each) => each.enum?.map(String) ?? [each.type ?? ""]);
  return [...new Set(words.filter((word) => word && word !== "null"))].join(" | ");
}

/** Names under a section of the text itself: `providers:` or `models:`. */
export function namesUnder(text, section) {
  const lines = text.split("\n");
  const found = [];
  let indent = -1;
  const begin = lines.findIndex((line) => line.startsWith(`${section}:`));
  for (let idx = begin + 1; begin >= 0 && idx < lines.length && found.length < NAMES_MAX; idx += 1) {
    if (isBlank(lines[idx])) continue;
    const [entry] = entriesOf(lines[idx]);
    if (lines[idx][0] !== " ") break;
    if (indent < 0 && entry) indent = entry.indent;
    if (entry?.indent === indent && entry.key !== ITEM) found.push(entry.key);
  }
  return found;
}

function keyItems(schema, nodes, keys) {
  const items = new Map();
  for (const node of nodes) {
    for (const [name, field] of Object.entries(node.properties ?? {})) {
      if (keys.has(name) || items.has(name)) continue;
      const detail = typeOf(schema, field);
      items.set(name, { label: name, insert: `${name}: `, detail, about: field.description ?? "" });
    }
  }
  return [...items.values()];
}

function valueItems(nodes, path, text) {
  const items = new Map();
  const add = (label, detail, about = "") => {
    if (!items.has(label)) items.set(label, { label, insert: label, detail, about });
  };
  const key = path.filter((each) => each !== ITEM).at(-1);
  if (key === "provider" && path[0] === "models") namesUnder(text, "providers").forEach((each) => add(each, "providers"));
  if (key === "model" && path[0] === "routes") namesUnder(text, "models").forEach((each) => add(each, "models"));
  for (const node of nodes) {
    const about = node.description ?? "";
    for (const word of node.enum ?? []) if (word !== null) add(String(word), "", about);
    if (node.type === "boolean") ["true", "false"].forEach((word) => add(word, "", about));
    if (node.default !== undefined && typeof node.default !== "object") add(String(node.default), "default", about);
    for (const example of node.examples ?? []) add(String(example), "example", about);
  }
  return [...items.values()];
}

/** { typed, items }: what fits at `offset`, best first; `typed` characters before it are replaced. */
export function complete(schema, text, offset) {
  const at = contextAt(text, offset);
  if (!at) return { typed: "", items: [] };
  const nodes = nodesAt(schema, at.path);
  const items = at.kind === "value" ? [] : keyItems(schema, nodes, at.keys);
  if (at.kind !== "key") items.push(...valueItems(nodes, at.path, text));
  const typed = at.typed.toLowerCase();
  const fitting = items.filter(({ label }) => label.toLowerCase().includes(typed) && label !== at.typed);
  const begins = ({ label }) => (label.toLowerCase().startsWith(typed) ? 0 : 1);
  fitting.sort((one, other) => begins(one) - begins(other));
  return { typed: at.typed, items: fitting };
}

/** Text between key and value for an `insert` at `offset`: none is needed where one stands already. */
export function spaced(text, offset, insert) {
  return /[:,-]$/.test(text.slice(0, offset)) ? ` ${insert}` : insert;
}
