"""Changes to jobs in Redis, as Lua scripts: hash and sets change together, and only if the job is in the state that the
writer expects.

A worker holds a job by its claim: `claim` is its token, `claim_until` when it expires unless renewed (milliseconds of
Redis's own clock, so that no two clocks are compared). A claim that expired without being given back counts as a death
of its worker, in `deaths`. In the same way `cached_by` and `cached_until` say which dispatcher has a result in memory.
"""

PENDING = "jobs:status:pending"
READY = "jobs:status:ready"
CACHED = "jobs:status:dispatcher_cache_processing"
FAILED = "jobs:status:failed"
SETS = (PENDING, READY, CACHED, FAILED)

FUNCTIONS = """
local SETS = {
  'jobs:status:pending', 'jobs:status:ready', 'jobs:status:dispatcher_cache_processing', 'jobs:status:failed'
}
local UNDER_WAY = {pending = 1, waiting_comfyui = 1, processing_comfyui = 1, processing = 1}

local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The values of these fields of a job; none if the key is not a hash.
local function read(key, ...)
  return redis.call('TYPE', key).ok == 'hash' and redis.call('HMGET', key, ...) or {}
end

-- The value of a field as a number; 0 if it is missing or not a number.
local function number(text)
  return tonumber(text or '') or 0
end

-- The milliseconds that a claim has left; 0 if it has expired. One that seems to last longer than a day, the maximum of
-- `worker_silence_seconds`, has expired too: a wrong clock or another program wrote it.
local function left(till, now)
  local it = number(till) - now
  if it > 0 and it <= 86400000 then return it end
  return 0
end

-- Why the worker does not hold the job: 'lost' or 'gone'; nil if it does.
local function lost(job, token)
  if redis.call('HGET', job, 'claim') == token then return nil end
  return redis.call('EXISTS', job) == 1 and 'lost' or 'gone'
end

-- Put a job into the set of its status. One that is ready without a picture goes to failed, so that it is cleaned up
-- eventually; one with an unknown status goes to no set.
local function settle(key, id)
  local status, output = unpack(read(key, 'status', 'output_r2_key'))
  local set = ''
  if status and UNDER_WAY[status] then set = 'jobs:status:pending' end
  if status == 'failed' then set = 'jobs:status:failed' end
  if status == 'ready' then
    set = 'jobs:status:ready'
    if redis.call('SISMEMBER', 'jobs:status:dispatcher_cache_processing', id) == 1 then
      set = 'jobs:status:dispatcher_cache_processing'
    end
    if not output or output == '' then set = 'jobs:status:failed' end
  end
  for _, name in ipairs(SETS) do
    if name ~= set then redis.call('SREM', name, id) end
  end
  if set ~= '' then redis.call('SADD', set, id) end
end
"""
"""Functions that the scripts share: `RedisCalls.run` prepends them to each script."""

CREATE = """
-- KEYS: job, idempotency key or ''. ARGV: job id, seconds that the idempotency key lives, field, value, ...
if KEYS[2] ~= '' then
  local known = redis.call('GET', KEYS[2])
  if known then return known end
end
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HSET', KEYS[1], unpack(ARGV, 3))
  redis.call('SADD', 'jobs:status:pending', ARGV[1])
end
if KEYS[2] ~= '' then redis.call('SET', KEYS[2], ARGV[1], 'EX', ARGV[2]) end
return ARGV[1]
"""

WITHDRAW = """
-- KEYS: job, idempotency key or ''. ARGV: job id. Undo CREATE unless a worker has claimed the job, or another request
-- with the same idempotency key has sent it and reported success.
if redis.call('HGET', KEYS[1], 'status') ~= 'pending' or redis.call('HEXISTS', KEYS[1], 'claim') == 1
  or redis.call('HEXISTS', KEYS[1], 'sent_at') == 1 then return 0 end
redis.call('DEL', KEYS[1])
redis.call('SREM', 'jobs:status:pending', ARGV[1])
if KEYS[2] ~= '' and redis.call('GET', KEYS[2]) == ARGV[1] then redis.call('DEL', KEYS[2]) end
return 1
"""

SENT = """
-- KEYS: job. ARGV: time. Returns whether there is such a job. From now on WITHDRAW leaves it alone.
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSETNX', KEYS[1], 'sent_at', ARGV[1])
return 1
"""

CLAIM = """
-- KEYS: job. ARGV: token, milliseconds, maximum deaths. Returns {result, milliseconds that another claim has left}.
local status = read(KEYS[1], 'status')[1]
if not status then return {'gone', 0} end
if status == 'failed' then return {'failed', 0} end
if not UNDER_WAY[status] then return {'done', 0} end
local claim, now = redis.call('HGET', KEYS[1], 'claim'), now()
local held = left(redis.call('HGET', KEYS[1], 'claim_until'), now)
local what = 'claimed'
if claim and claim ~= ARGV[1] then
  if held > 0 then return {'held', held} end
  local deaths = number(redis.call('HGET', KEYS[1], 'deaths'))
  deaths = deaths > 0 and deaths + 1 or 1
  redis.call('HSET', KEYS[1], 'deaths', deaths)
  if deaths >= tonumber(ARGV[3]) then what = 'exhausted' end
end
redis.call('HSET', KEYS[1], 'claim', ARGV[1], 'claim_until', now + ARGV[2])
return {what, 0}
"""

UPDATE = """
-- KEYS: job. ARGV: token, milliseconds, field, value, ... (none: only renew the claim).
local why = lost(KEYS[1], ARGV[1])
if why then return why end
redis.call('HSET', KEYS[1], 'claim_until', now() + ARGV[2], unpack(ARGV, 3))
return 'done'
"""

GIVE_BACK = """
-- KEYS: job. ARGV: token, updated_at.
local why = lost(KEYS[1], ARGV[1])
if why then return why end
redis.call('HSET', KEYS[1], 'status', 'pending', 'updated_at', ARGV[2])
redis.call('HDEL', KEYS[1], 'claim', 'claim_until')
return 'done'
"""

END = """
-- KEYS: job, set. ARGV: token, job id, field, value, ... (one of them `ended_by`). Repeated, it changes nothing.
if redis.call('HGET', KEYS[1], 'ended_by') == ARGV[1] then return 'done' end
local why = lost(KEYS[1], ARGV[1])
if why then return why end
redis.call('HSET', KEYS[1], unpack(ARGV, 3))
redis.call('HDEL', KEYS[1], 'claim', 'claim_until')
redis.call('SREM', 'jobs:status:pending', ARGV[2])
redis.call('SADD', KEYS[2], ARGV[2])
return 'done'
"""

SETTLE = """
-- KEYS: job. ARGV: job id.
settle(KEYS[1], ARGV[1])
return 1
"""

UNCACHE = """
-- KEYS: job. ARGV: job id, dispatcher, or '' for any whose time is up. Returns whether the job is in ready again.
if redis.call('SISMEMBER', 'jobs:status:dispatcher_cache_processing', ARGV[1]) == 0 then return 0 end
local by, till = unpack(read(KEYS[1], 'cached_by', 'cached_until'))
local there = redis.call('TYPE', KEYS[1]).ok == 'hash'
if not there then
  -- gone, or no longer a job: it leaves the set below, no matter who cached it
elseif ARGV[2] == '' then
  if number(till) > now() then return 0 end
elseif by ~= ARGV[2] then
  return 0
end
redis.call('SREM', 'jobs:status:dispatcher_cache_processing', ARGV[1])
if there then redis.call('HDEL', KEYS[1], 'cached_by', 'cached_until') end
settle(KEYS[1], ARGV[1])
return redis.call('SISMEMBER', 'jobs:status:ready', ARGV[1])
"""

CACHE_PAGE = """
-- KEYS: ready. ARGV: cursor, count, dispatcher, milliseconds, how many the dispatcher can take. Members that are not
-- ready leave the set. Returns {cursor, {id, user_id, output_r2_key, image_type, ...}} of the jobs taken.
local found = redis.call('SSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local room, till, rows = tonumber(ARGV[5]), now() + ARGV[4], {}
for _, id in ipairs(found[2]) do
  local it = read(id, 'status', 'user_id', 'output_r2_key', 'image_type')
  if it[1] ~= 'ready' or not it[3] or it[3] == '' then
    settle(id, id)
  elseif room > 0 then
    room = room - 1
    redis.call('SMOVE', KEYS[1], 'jobs:status:dispatcher_cache_processing', id)
    redis.call('HSET', id, 'cached_by', ARGV[3], 'cached_until', till)
    rows[#rows + 1] = id
    for n = 2, 4 do rows[#rows + 1] = it[n] or '' end
  end
end
return {found[1], rows}
"""

UNCACHE_PAGE = """
-- KEYS: the set of cached jobs. ARGV: cursor, count. Moves those whose time is up back to ready. Returns the cursor.
local found, now = redis.call('SSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2]), now()
for _, id in ipairs(found[2]) do
  local it = read(id, 'status', 'cached_until')
  if it[1] ~= 'ready' then
    settle(id, id)
  elseif number(it[2]) <= now then
    redis.call('SMOVE', KEYS[1], 'jobs:status:ready', id)
    redis.call('HDEL', id, 'cached_by', 'cached_until')
  end
end
return found[1]
"""

DELIVERED = """
-- KEYS: job. ARGV: time, the status that was delivered. Only the first delivery counts, and none after an operator has
-- requeued the job.
if redis.call('HGET', KEYS[1], 'status') ~= ARGV[2] then return 0 end
return redis.call('HSETNX', KEYS[1], 'delivered_at', ARGV[1])
"""

REMOVE = """
-- KEYS: job. ARGV: job id, '1' to remove it only if it is ready or failed.
local status = redis.call('HGET', KEYS[1], 'status')
if ARGV[2] == '1' and status ~= 'ready' and status ~= 'failed' then return 0 end
for _, name in ipairs(SETS) do redis.call('SREM', name, ARGV[1]) end
return redis.call('DEL', KEYS[1])
"""

TOUCH = """
-- KEYS: job. ARGV: old updated_at, new updated_at. Of several sweepers, only one gets 1.
if (redis.call('HGET', KEYS[1], 'updated_at') or '') ~= ARGV[1] or redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], 'updated_at', ARGV[2])
return 1
"""

REQUEUE = """
-- KEYS: job. ARGV: job id, updated_at. Restart a failed job. Returns whether the job is to be done. Its attempts keep
-- counting, since each gives a prompt its id, which a ComfyUI server may still know.
local status = redis.call('HGET', KEYS[1], 'status')
if not status or status == 'ready' then return 0 end
if status ~= 'failed' then return 1 end
local attempt = number(redis.call('HGET', KEYS[1], 'attempt'))
redis.call('HSET', KEYS[1], 'status', 'pending', 'updated_at', ARGV[2], 'error', '', 'attempts_before', attempt,
  'attempt', attempt + 1)
redis.call('HDEL', KEYS[1], 'deaths', 'comfyui_deaths', 'prompt_id', 'comfyui_server', 'ended_by', 'delivered_at',
  'claim', 'claim_until')
redis.call('SREM', 'jobs:status:failed', ARGV[1])
redis.call('SADD', 'jobs:status:pending', ARGV[1])
return 1
"""

PEEK = """
-- KEYS: set. ARGV: cursor, count, statuses, changed, answered, ahead. Leaves out jobs with one of these statuses that
-- are claimed, or that were changed after `changed` (and before `ahead`) and, if at all, answered after `answered`.
-- From the set of cached jobs, only those are left out that a dispatcher still has. Jobs with times in another format
-- than ours are returned, for the caller to read.
-- Returns {cursor, {id, status, type, updated_at, delivered_at, in_table, ...}}.
local function later(stamp, than) return #stamp == 32 and string.sub(stamp, -6) == '+00:00' and stamp > than end
local found, now = redis.call('SSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2]), now()
local rows = {}
for _, id in ipairs(found[2]) do
  local it = read(id, 'status', 'type', 'updated_at', 'delivered_at', 'claim_until', 'cached_until', 'in_table')
  local claimed, cached = left(it[5], now) > 0, number(it[6]) > now
  local calm = #id == 36 and it[1] and string.find(ARGV[3], ' ' .. it[1] .. ' ', 1, true)
    and (claimed or later(it[3] or '', ARGV[4]) and it[3] < ARGV[6] and (not it[4] or later(it[4], ARGV[5])))
    and (cached or KEYS[1] ~= 'jobs:status:dispatcher_cache_processing')
  if not calm then
    rows[#rows + 1] = id
    for n = 1, 4 do rows[#rows + 1] = it[n] or '' end
    rows[#rows + 1] = it[7] or ''
  end
end
return {found[1], rows}
"""

STATUSES = """
-- KEYS: jobs. Returns {whether the key exists, its status} for each.
local found = {}
for n, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  found[n] = {kind ~= 'none' and 1 or 0, kind == 'hash' and redis.call('HGET', key, 'status') or ''}
end
return found
"""

ALLOW = """
-- KEYS: counter. ARGV: limit, milliseconds. Returns 0, or the milliseconds until the next request is allowed.
local count = redis.call('INCR', KEYS[1])
if redis.call('PTTL', KEYS[1]) < 0 then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
if count <= tonumber(ARGV[1]) then return 0 end
return math.max(1, redis.call('PTTL', KEYS[1]))
"""

REFUND = """
-- KEYS: counter. Undo one ALLOW.
if redis.call('EXISTS', KEYS[1]) == 1 then return redis.call('DECR', KEYS[1]) end
"""

# --- uploads: answered ones are deleted after the grace period, if they are still the same version ------------------

UPLOADS_OF = "uploads:answered"
"""The set of users whose uploads were answered; `uploads:answered:<user>` has the version and time of each name."""

ANSWERED = """
-- KEYS: answers of the user, users. ARGV: user, milliseconds ago, name, version, ... Only the first answer of a version
-- counts, unless the upload is to be deleted at once.
local now = now()
for n = 3, #ARGV, 2 do
  local known = redis.call('HGET', KEYS[1], ARGV[n])
  local space = known and string.find(known, ' ', 1, true)
  local same = space and string.sub(known, space + 1) == ARGV[n + 1]
  if not same or ARGV[2] ~= '0' then
    redis.call('HSET', KEYS[1], ARGV[n], string.format('%.0f', now - ARGV[2]) .. ' ' .. ARGV[n + 1])
  end
end
if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('SADD', KEYS[2], ARGV[1]) end
"""

BEGIN_WRITE = """
-- KEYS: writers of the upload, its deleter. ARGV: token, milliseconds. Returns whether it may be written now.
if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
redis.call('ZADD', KEYS[1], now() + ARGV[2], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
"""

BEGIN_DELETE = """
-- KEYS: answers of the user, writers of the upload, its deleter. ARGV: name, its answer, token, milliseconds. Returns
-- whether it may be deleted now: nobody is writing or deleting it, and the answer is unchanged.
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now())
if redis.call('ZCARD', KEYS[2]) > 0 then return 0 end
return redis.call('SET', KEYS[3], ARGV[3], 'NX', 'PX', ARGV[4]) and 1 or 0
"""

END_DELETE = """
-- KEYS: answers of the user, users, deleter. ARGV: user, name, its answer, token, '1' if the answer is settled.
if redis.call('GET', KEYS[3]) == ARGV[4] then redis.call('DEL', KEYS[3]) end
if ARGV[5] == '1' and redis.call('HGET', KEYS[1], ARGV[2]) == ARGV[3] then redis.call('HDEL', KEYS[1], ARGV[2]) end
if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('SREM', KEYS[2], ARGV[1]) end
"""

# --- locks: each is the token of its holder, and expires ------------------------------------------------------------

RENEW_LOCK = """
-- KEYS: lock. ARGV: token, milliseconds. Returns whether the lock is still that holder's.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""

RELEASE_LOCK = """
-- KEYS: lock. ARGV: token.
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
"""
