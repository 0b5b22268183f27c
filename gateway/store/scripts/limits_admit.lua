-- Admit one request of a key: requests a minute, tokens a minute and concurrency, all or nothing.
--
-- A window is one number, the instant at which it is full again (GCRA's theoretical arrival time).
-- Taking `cost` moves that instant by cost * 60 s / limit; it may lie at most 60 s ahead.
--
-- KEYS  requests window, tokens window, open tickets (sorted set: ticket -> end of its lease)
-- ARGV  requests a minute (0 = no limit), tokens a minute (0), tokens of this request,
--       concurrency (0), ticket, lease in microseconds
-- Returns {refused by (0 none, 1 requests, 2 tokens, 3 concurrency), wait us,
--          requests left, requests full in us, tokens left, tokens full in us}
local WINDOW_US = 60000000
local EPSILON_US = 1

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

local function look(key, limit, cost)
  local interval = WINDOW_US / limit
  local full_at = math.max(tonumber(redis.call('GET', key) or '0'), now)
  local taken = full_at + cost * interval
  local wait = taken - now - WINDOW_US
  return { key = key, interval = interval, full_at = full_at, taken = taken, wait = wait }
end

local function left(window, full_at)
  return math.max(0, math.floor((now + WINDOW_US - full_at) / window.interval + 0.000001))
end

local rpm, tpm = tonumber(ARGV[1]), tonumber(ARGV[2])
local requests = rpm > 0 and look(KEYS[1], rpm, 1) or nil
local tokens = tpm > 0 and look(KEYS[2], tpm, tonumber(ARGV[3])) or nil
local concurrency_max = tonumber(ARGV[4])

local refused, wait = 0, 0
if requests and requests.wait > EPSILON_US then
  refused, wait = 1, requests.wait
end
if tokens and tokens.wait > EPSILON_US and tokens.wait > wait then
  refused, wait = 2, tokens.wait
end
if refused == 0 and concurrency_max > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now)
  if redis.call('ZCARD', KEYS[3]) >= concurrency_max then
    refused, wait = 3, 0
  end
end

local function report(window)
  if not window then
    return 0, 0
  end
  local full_at = refused == 0 and window.taken or window.full_at
  if refused == 0 then
    local expire_s = math.ceil((full_at - now) / 1000000) + 60
    redis.call('SET', window.key, string.format('%.0f', full_at), 'EX', expire_s)
  end
  return left(window, full_at), math.ceil(full_at - now)
end

local requests_left, requests_full = report(requests)
local tokens_left, tokens_full = report(tokens)
if refused == 0 and concurrency_max > 0 then
  local lease_us = tonumber(ARGV[6])
  redis.call('ZADD', KEYS[3], now + lease_us, ARGV[5])
  redis.call('PEXPIRE', KEYS[3], math.ceil(lease_us / 1000) * 2)
end
return { refused, math.ceil(wait), requests_left, requests_full, tokens_left, tokens_full }
