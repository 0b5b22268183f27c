-- A request of a key has ended: correct its tokens and free its place.
--
-- KEYS  tokens window, open tickets
-- ARGV  tokens a minute (0 = no limit), tokens used beyond those taken (may be negative), ticket
local WINDOW_US = 60000000

local tpm, extra = tonumber(ARGV[1]), tonumber(ARGV[2])
if tpm > 0 and extra ~= 0 then
  local time = redis.call('TIME')
  local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
  local full_at = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), now)
  full_at = full_at + extra * WINDOW_US / tpm
  if full_at <= now then
    redis.call('DEL', KEYS[1])
  else
    local expire_s = math.ceil((full_at - now) / 1000000) + 60
    redis.call('SET', KEYS[1], string.format('%.0f', full_at), 'EX', expire_s)
  end
end
return redis.call('ZREM', KEYS[2], ARGV[3])
