-- Keep the places of requests that still run; those of a process that died end with their lease.
--
-- KEYS  open tickets
-- ARGV  lease in microseconds, tickets…
local time = redis.call('TIME')
local lease_us = tonumber(ARGV[1])
local ends = tonumber(time[1]) * 1000000 + tonumber(time[2]) + lease_us
for i = 2, #ARGV do
  redis.call('ZADD', KEYS[1], 'XX', ends, ARGV[i])
end
redis.call('PEXPIRE', KEYS[1], math.ceil(lease_us / 1000) * 2)
return #ARGV - 1
