/* The life of a sender's nonces: C1 to C4 of the way back, and C9. check.sh runs it.
 *
 * Two instances (INSTANCES) contend for one sender; each may take it over at any moment, since a lock may be lost without its holder knowing, and may crash between any two
 * steps, which loses what it had in memory. The database is a set of variables that change in atomic steps, each of which names the epoch. What has left a
 * process may be mined at any later time, whatever anybody wishes. The database may be restored once to how it was at some earlier time; the chain, the pool, and
 * what processes have in memory are not. Left out: a pool that drops a low nonce and keeps a higher one, which it then does not count.
 *
 * Each NO_… takes one rule out, and then an assertion must fail; check.sh says with how many instances, commands and nonces.
 */
#ifndef CMDS
#define CMDS 2
#endif
#ifndef INSTANCES
#define INSTANCES 2
#endif
#ifndef TAKEOVERS
#define TAKEOVERS 2 /* how many there are; the first of each instance count */
#endif
#ifndef NONCES
#define NONCES 2
#endif

#define ACC 0   /* accepted */
#define SENT 2  /* has a nonce: something was signed for it and stored */
#define DONE 3  /* answered: the call was mined */
#define VOID 4  /* answered: the void was mined */
#define GONE 5  /* answered: nothing was signed, it never takes effect */

#define NONE 0
#define CALL(c) ((c) + 1)
#define EMPTY 9
#define UNSEEN 255

/* the database */
byte state[CMDS], nonce[CMDS];
byte stored[NONCES];   /* the command whose call is stored as an attempt at the nonce, as CALL(c) */
bool storedVoid[NONCES];
byte next;
bool halted;
byte epoch;

/* its backup */
byte bState[CMDS], bNonce[CMDS], bStored[NONCES], bNext;
bool bVoid[NONCES], bHalted, saved, restored;

/* what is out, and cannot be taken back */
byte out[NONCES];      /* CALL(c): bytes of the call */
byte out2[NONCES];     /* of another command's call, if there ever is one */
bool outVoid[NONCES];

/* the chain */
byte mined[NONCES];
byte latest, final;    /* nonces below are used up in some block, in a final block */
byte reorgs;

bool given[CMDS];      /* expired or cancelled */
byte clock = 1;        /* epochs are of the server's clock: they never repeat, restored or not */
byte takes;

/* The only way in which a command gets another state: the transitions of relayer/command, which its tests compare. */
inline move(c, from, to) { assert(state[c] == from); state[c] = to }

/* Bytes leave only once everything below their nonce has left, or is mined. */
#ifdef NO_ORDER
#define IN_ORDER(n) true
#else
#define IN_ORDER(n) (n <= latest || out[n - 1] != NONE || outVoid[n - 1])
#endif

inline leave(n, c) {
  if
  :: !IN_ORDER(n)
  :: IN_ORDER(n) && (out[n] == NONE || out[n] == CALL(c)) -> out[n] = CALL(c)
  :: IN_ORDER(n) && out[n] != NONE && out[n] != CALL(c) -> out2[n] = CALL(c)
  fi
}

/* the highest nonce that the chain or a pool knows, and one more */
inline pending(p) {
  p = latest;
  do
  :: p < NONCES && (out[p] != NONE || outVoid[p]) -> p++
  :: else -> break
  od
}

#ifdef NO_EPOCH
#define MINE true
#else
#define MINE (epoch == my)
#endif

#ifdef NO_FINAL
#define SETTLED latest
#else
#define SETTLED final
#endif

active [INSTANCES] proctype instance() {
  byte my, c, n, p, seen;
  bool giveUp;

takeover:
  atomic { takes++; clock++; epoch = clock; my = clock; c = 0; n = 0; p = 0; seen = UNSEEN; giveUp = false }

round:
  /* observe: nonces that were never given out here. It is acted on later, and with OLD_LOOK more than once, which matters only where `next` can become lower. */
  if
  :: atomic {
#ifndef NO_HALT
       pending(p);
       if
       :: MINE && p > next -> halted = true
       :: MINE && p <= next -> halted = false  /* its reason is gone */
       :: else
       fi;
#endif
       seen = p; p = 0 }
#ifdef OLD_LOOK
  :: seen != UNSEEN
#endif
  fi;
  if
  :: takes < TAKEOVERS -> goto takeover  /* crashed, or lost the lock and takes it again */
  :: c = 0
#if CMDS > 1
  :: c = 1
#endif
  fi;
  if
  :: atomic { state[c] == ACC && given[c] -> move(c, ACC, GONE) } ; goto round  /* by any instance, whatever the epoch */
  /* sign for the next nonce: in memory only */
  :: atomic { MINE && !halted && seen <= next && state[c] == ACC && next < NONCES -> n = next; giveUp = false } ; goto fresh
#ifdef FREE_NONCE
  :: atomic { MINE && !halted && state[c] == SENT && given[c] && nonce[c] == next - 1 -> state[c] = GONE; next--; stored[nonce[c]] = NONE } ; goto round
#endif
  /* sign a replacement: in memory only */
  :: atomic { MINE && !halted && state[c] == SENT -> n = nonce[c]; giveUp = given[c] } ; goto signed
  /* recorded bytes again, by whoever thinks that it may */
  :: atomic { state[c] == SENT && stored[nonce[c]] == CALL(c) -> leave(nonce[c], c) } ; goto round
  :: atomic { state[c] == SENT && storedVoid[nonce[c]] && IN_ORDER(nonce[c]) -> outVoid[nonce[c]] = true } ; goto round
  /* T3 */
  :: atomic { MINE && state[c] == SENT && nonce[c] < SETTLED ->
       n = nonce[c];
#ifdef NO_RECEIPT
       move(c, SENT, DONE)
#else
       if
       :: stored[n] == CALL(c) && mined[n] == CALL(c) -> move(c, SENT, DONE)
       :: storedVoid[n] && mined[n] == EMPTY -> move(c, SENT, VOID)
       :: else
       fi
#endif
       ; n = 0 } ; goto round
  :: else -> goto done
  fi;

fresh:
  if
  :: takes < TAKEOVERS -> goto takeover  /* what was signed is lost, and never left */
#ifdef NO_RECORD
  :: atomic { leave(n, c) } ; goto t1
#endif
  :: true
  fi;
t1:
  /* the nonce, the state and the bytes in one commit; the nonce is given to another command meanwhile, or to nobody, if it fails */
  atomic {
    if
    :: MINE && !halted && seen <= next && n == next && state[c] == ACC && !given[c] ->
         move(c, ACC, SENT); nonce[c] = n; stored[n] = CALL(c); next++
    :: else -> n = 0; goto round
    fi
  }
  goto out1;

signed:
  if
  :: takes < TAKEOVERS -> goto takeover
#ifdef NO_RECORD
  :: atomic { !giveUp -> leave(n, c) } ; goto t2
#endif
  :: true
  fi;
t2:
  atomic {
    if
    :: MINE && !halted && !giveUp && !storedVoid[n] && nonce[c] == n && state[c] == SENT -> stored[n] = CALL(c)
    :: MINE && !halted && giveUp && nonce[c] == n && state[c] == SENT -> storedVoid[n] = true
    :: else -> n = 0; giveUp = false; goto round     /* not stored: the bytes are forgotten */
    fi
  }
out1:
  if
  :: takes < TAKEOVERS -> goto takeover
  :: n = 0; giveUp = false; goto round  /* its session may be over: nothing leaves now */
  :: true
  fi;
  /* out, known to be stored */
  atomic {
    if
    :: giveUp && IN_ORDER(n) -> outVoid[n] = true
    :: giveUp && !IN_ORDER(n)
    :: !giveUp -> leave(n, c)
    fi;
    n = 0; giveUp = false
  }
  goto round;
done:
  skip
}

active proctype chain() {
  byte n, c;
  do
  /* the next nonce is mined: any of the bytes that are out */
  :: atomic { latest < NONCES && out[latest] != NONE -> mined[latest] = out[latest]; latest++ }
  :: atomic { latest < NONCES && out2[latest] != NONE -> mined[latest] = out2[latest]; latest++ }
  :: atomic { latest < NONCES && outVoid[latest] -> mined[latest] = EMPTY; latest++ }
  :: atomic { final < latest -> final++ }
  :: atomic { reorgs < 1 && final < latest -> reorgs++; latest--; mined[latest] = NONE }
  /* time goes by */
  :: given[0] = true
#if CMDS > 1
  :: given[1] = true
#endif
#ifdef RESTORE
  /* a backup, and its restore while everything else stays as it is */
  :: atomic { !saved -> saved = true; bNext = next; bHalted = halted;
       c = 0; do :: c < CMDS -> bState[c] = state[c]; bNonce[c] = nonce[c]; c++ :: else -> break od;
       n = 0; do :: n < NONCES -> bStored[n] = stored[n]; bVoid[n] = storedVoid[n]; n++ :: else -> break od; c = 0; n = 0 }
  :: atomic { saved && !restored -> restored = true; next = bNext; halted = bHalted; clock++; epoch = clock;
       c = 0; do :: c < CMDS -> state[c] = bState[c]; nonce[c] = bNonce[c]; c++ :: else -> break od;
       n = 0; do :: n < NONCES -> stored[n] = bStored[n]; storedVoid[n] = bVoid[n]; n++ :: else -> break od; c = 0; n = 0 }
#endif
  :: latest == NONCES -> break
  :: break
  od
}

/* At any time. */
active proctype watch() {
  byte n, c, count;
  atomic {
    /* C1: a command is mined once, and a nonce has only one command's bytes. */
    c = 0;
    do
    :: c < CMDS ->
       count = 0; n = 0;
       do
       :: n < NONCES -> if :: mined[n] == CALL(c) -> count++ :: else fi; n++
       :: else -> break
       od;
       assert(count <= 1);
       /* C4: no answer that the chain contradicts, of what is final; a restored database has forgotten answers, not invented any. */
       assert(!(state[c] == DONE && mined[nonce[c]] != CALL(c)));
       assert(!(state[c] == VOID && mined[nonce[c]] != EMPTY));
       assert(!(state[c] == GONE && count > 0 && !restored));
       c++
    :: else -> break
    od;
    /* C2 and C3: what is out is stored, as that command's whose nonce it is; a restored database has lost some, and then the sender halts. */
    n = 0;
    do
    :: n < NONCES ->
       assert(out2[n] == NONE);
       assert(restored || out[n] == NONE || stored[n] == out[n]);
       assert(stored[n] == NONE || nonce[stored[n] - 1] == n);
       n++
    :: else -> break
    od
  }
}
