"""Explicit-state model check of the claim-list lease for stores without CAS.

Every interleaving of N processes is explored: each store operation takes effect
at one instant, a PUT may take effect late (even after its owner gave up), any
process may stop for ever between two steps or be slow for any number of ticks,
and the server stamps each record with a clock that is wrong by up to SKEW.

Checked in every reachable state:
  I1  at most one process believes it holds a lease that has not run out
  I2  the tokens of successive holders strictly increase
"""

from __future__ import annotations

from collections import namedtuple

# One record in the bucket: <token>-<owner>.<attempt>-<seq>, plus the server's stamp.
Rec = namedtuple("Rec", "token owner attempt seq ts released")
# One process.
P = namedtuple("P", "pc attempt token seq issued resp ts snap deadline renewals")
NEW = P("idle", 0, 0, 0, 0, 0, 0, None, -1, 0)


def run(n, ttl, horizon, skew, attempts=2, renew=1, margin=0, bug=None, dup=False, only_i1=False, limit=9_000_000):
    dead_margin = 0 if bug == "no-skew-margin" else 2 * skew
    stamps = sorted({-skew, 0, skew})

    def live(rec, server_now):
        return not rec.released and server_now - rec.ts <= ttl + dead_margin

    start = (0, frozenset(), frozenset(), tuple([NEW] * n), 0)
    seen, stack = {start}, [start]
    holds = 0
    while stack:
        state = stack.pop()
        t, store, flight, ps, last_token = state
        holders = [i for i, p in enumerate(ps) if p.pc == "hold" and t < p.deadline]
        if len(holders) > 1:
            return "I1 broken: two holders", len(seen), holds
        nxt = []

        def go(i=None, p=None, store_=store, flight_=flight, t_=t, tok=last_token, ps=ps, nxt=nxt):
            q = ps if i is None else (*ps[:i], p, *ps[i + 1 :])
            nxt.append((t_, store_, flight_, q, tok))

        if t < horizon:
            go(t_=t + 1)
        # A request in flight takes effect; its owner may or may not still be listening.
        for req in flight:
            owner, rec = req
            rest = flight - {req}
            for d in stamps:
                done = rec._replace(ts=t + d)
                p = ps[owner]
                waiting = p.pc in ("put", "renew") and p.attempt == rec.attempt and p.seq == rec.seq
                keep = rest | {(owner, rec._replace(released=None))} if dup and rec.released is False else rest
                done = done._replace(released=False)
                for rest_ in {rest, keep}:
                    if waiting:
                        # stored now, answered at some later instant
                        go(owner, p._replace(pc=p.pc + "-stored", ts=t + d), store | {done}, rest_)
                    else:
                        go(store_=store | {done}, flight_=rest_)
        for i, p in enumerate(ps):
            mine = {r for r in store if r.owner == i and r.attempt == p.attempt}
            if p.pc == "idle" and p.attempt < attempts:
                go(i, p._replace(pc="listed0", snap=(t, store)))
            elif p.pc == "listed0":
                at, snap = p.snap
                for d in stamps:
                    if any(live(r, at + d) for r in snap):
                        go(i, NEW._replace(attempt=p.attempt + 1))
                        continue
                    token = 1 + max((r.token for r in snap), default=0)
                    rec = Rec(token, i, p.attempt, 0, 0, False)
                    go(i, p._replace(pc="put", token=token, seq=0, issued=t, snap=None), flight_=flight | {(i, rec)})
                    if bug == "no-recheck":
                        pass
            elif p.pc == "put-stored":
                go(i, p._replace(pc="putted", resp=t))
                go(i, NEW._replace(attempt=p.attempt + 1))  # answer lost
            elif p.pc == "renew-stored":
                go(i, p._replace(pc="renewted", resp=t))
                go(i, NEW._replace(attempt=attempts))  # answer lost: stop
            elif p.pc == "put":
                # The client may give up; the request stays in flight and may land later.
                go(i, NEW._replace(attempt=p.attempt + 1))
            elif p.pc == "putted":
                if bug == "no-recheck":
                    go(i, p._replace(pc="listed1", snap=frozenset()))
                else:
                    go(i, p._replace(pc="listed1", snap=store))
            elif p.pc == "listed1":
                base = p.resp if bug == "deadline-from-response" else p.issued
                deadline = base + ttl - margin
                server_now = p.ts + (t - p.resp)  # a lower bound on the server's clock
                if bug == "judge-at-once":
                    server_now = p.ts
                others = [r for r in p.snap if (r.owner, r.attempt) != (i, p.attempt)]
                if bug == "earliest-wins":
                    rival = any(live(r, server_now) and (r.ts, r.owner) < (p.ts, i) for r in others)
                else:
                    rival = any(live(r, server_now) for r in others)
                stale = any(r.token >= p.token for r in others)
                if bug in ("no-token-check", "earliest-wins"):
                    stale = False
                if t >= deadline or rival or stale:
                    # withdraw: our claim was never a holder's, so it may be deleted
                    go(i, NEW._replace(attempt=p.attempt + 1), store_=store - mine)
                    # or crash before the delete
                    go(i, NEW._replace(attempt=attempts))
                else:
                    if p.token <= last_token and not only_i1:
                        return f"I2 broken: token {p.token} after {last_token}", len(seen), holds
                    holds += 1
                    go(i, p._replace(pc="hold", deadline=deadline, snap=None), tok=p.token)
            elif p.pc == "hold":
                if t < p.deadline and p.renewals < renew:
                    rec = Rec(p.token, i, p.attempt, p.seq + 1, 0, False)
                    go(
                        i,
                        p._replace(pc="renew", seq=p.seq + 1, issued=t, renewals=p.renewals + 1),
                        flight_=flight | {(i, rec)},
                    )
                # release: keep the token as a tombstone (or, broken, delete it)
                if bug == "delete-on-release":
                    gone = store - mine
                else:
                    gone = (store - mine) | {r._replace(released=True) for r in mine}
                go(i, NEW._replace(attempt=p.attempt + 1), store_=gone)
                # housekeeping by the holder: drop lower tokens
                if t < p.deadline:
                    low = {r for r in store if r.token < p.token}
                    if low:
                        go(i, p, store_=store - low)
                # crash: for ever silent
                go(i, NEW._replace(attempt=attempts))
            elif p.pc == "renew":
                pass
            elif p.pc == "renewted":
                # The old lease still protects us only if the answer came before it expired.
                if t < p.deadline or bug == "late-renew":
                    go(i, p._replace(pc="hold", deadline=p.issued + ttl - margin))
                else:
                    go(i, NEW._replace(attempt=attempts))
        for s in nxt:
            if s not in seen:
                seen.add(s)
                if len(seen) > limit:
                    return f"gave up at {limit} states", len(seen), holds
                stack.append(s)
    return "ok", len(seen), holds
