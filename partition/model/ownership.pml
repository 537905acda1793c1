/*
 * The ownership protocol: who may commit for which slot, and from which block on. Checked with Spin by check.sh.
 *
 * Two instances (-DN=3: three), two slots, a few blocks, and a budget of misfortunes: an instance loses its session (it is frozen, cut off, or its session
 * is terminated) and goes on as a zombie, it crashes, its claimer hangs while the session lives, its nodes are gone, or it stops. Slot 0 is preferred by
 * instances 0 and 2, slot 1 by instance 1. What is atomic here is one transaction of the database there:
 *
 *   lock      election.Open                take the instance's lock: from here on the others see that it lives
 *   join      partition.Claimer.Join       raise the own epoch, take back what nobody has claimed
 *   look      partition.Claimer.stamp      say that the claimer makes its rounds
 *   review    partition.Claimer.review     sit out, or take part again
 *   claim     partition.Claimer.claim      raise the epochs of the dead owners and the own one, take their slots and free ones, go on from the lowest cursor
 *   release   partition.Claimer.Release    raise the own epoch, leave the cursor in the slot: a yield, or a stop
 *   commit    ledger.CommitSlots           only if epoch and cursor are those it was computed from
 *   rollback  ledger.Rollback              everybody's cursor back to the fork
 *   lead      election.Elector.try         take the leader lock
 *   begin     election.Elector.begin       raise the term
 *   record    ledger.CommitFactory         only under the newest term
 *
 * Who may claim what is the code's rule (Decide): what is free or owned by the dead, if it is preferred by the claimer, or by nobody who works. To work is to
 * live (the lock is held, and the claimer looks) and not to sit out. Neither a claim nor a release asks for the own lock: a zombie that nobody has claimed
 * from may do both, and epochs keep it harmless. A commit is computed before it is sent, and may still be under way in the next life of its instance.
 *
 * Safety (assertions): only the owner of a slot commits for it; no cursor passes a block that was not committed for the slot it vouches for; only who began
 * the newest term records. Liveness (ltl): when misfortunes end, every slot is served for good by somebody who works, if anybody lives, who prefers it if any
 * such works, and who can go on if anybody can.
 *
 * What the code does that is left out here: time (ADOPT_AFTER, the spreading of adopted slots, StallAfter, the probation, which only make moves rarer); the
 * lease, by which a zombie stops publishing before its lock is free; PARTITION_NUMBER=auto; the publisher's coming to rest before a yield (reorg.pml has
 * the outbox); the ending of dead owners' transactions, which only shortens waits; notifications, which are hints; more than one chain.
 *
 * The negative checks take one rule out, and Spin has to find what the rule prevents. Safety: -DNO_FENCE (commits do not look at the epoch), -DNO_OWN_RAISE (a
 * claim does not raise the claimer's own epoch), -DNO_RELEASE_RAISE (nor does a release), -DNO_MIN (a claimer keeps its own cursor), -DNO_TERM (the factory's
 * commits do not look at the term). Liveness: -DNO_ADOPT (only who prefers a slot claims it), -DNO_YIELD (an adopter keeps what it has), -DNO_LOOK (alive is
 * who holds the lock), -DNO_SITTING_OUT (an owner that cannot go on keeps its slots), -DNO_OTHER (it gives them up though nobody else can go on).
 */
#ifndef BLOCKS
#define BLOCKS 2
#endif
#ifndef BUDGET
#define BUDGET 2
#endif
#ifndef N
#define N 2
#endif
#define FREE 9

/* the database */
byte epoch[N];          /* cursors.epoch */
byte cur[N];            /* cursors.next_block */
bool lock[N];           /* the session's lock is in pg_locks */
bool hung[N];           /* relayer_instances.seen_at is old */
bool out[N];            /* relayer_instances.sits_out */
byte owner[2];          /* slot_ownership.owner */
byte left[2];           /* slot_ownership.next_block, while free */
byte leader = FREE;     /* who holds the leader lock */
byte term;              /* leadership.epoch */
/* the truth */
bool gone[N];           /* the nodes of the instance */
byte done[2];           /* next block that nobody has committed for the slot */
byte began = FREE;      /* who began the newest term */
byte budget = BUDGET;
bool rolled;

#ifdef NO_LOOK
#define LIVES(i) (lock[i])
#else
#define LIVES(i) (lock[i] && !hung[i])
#endif
#define WORKS(i)      (LIVES(i) && !out[i])
#define CAN(i)        (WORKS(i) && !gone[i])
#define PREFERS(i, s) ((i) % 2 == (s))
#if N == 3
#define SOMEBODY_WHO_PREFERS(s) ((PREFERS(0, s) && WORKS(0)) || (PREFERS(1, s) && WORKS(1)) || (PREFERS(2, s) && WORKS(2)))
#define ANOTHER(i, what)        ((i != 0 && what(0)) || (i != 1 && what(1)) || (i != 2 && what(2)))
#define ANYBODY(what)           (what(0) || what(1) || what(2))
#else
#define SOMEBODY_WHO_PREFERS(s) ((PREFERS(0, s) && WORKS(0)) || (PREFERS(1, s) && WORKS(1)))
#define ANOTHER(i, what)        ((i != 0 && what(0)) || (i != 1 && what(1)))
#define ANYBODY(what)           (what(0) || what(1))
#endif

#ifdef NO_OTHER
#define ANOTHER_CAN(i)   true
#define ANOTHER_WORKS(i) true
#else
#define ANOTHER_CAN(i)   ANOTHER(i, CAN)
#define ANOTHER_WORKS(i) ANOTHER(i, WORKS)
#endif
#define TAKEN(s)      (owner[s] != FREE && LIVES(owner[s]))
#ifdef NO_ADOPT
#define MAY(i, s)     (!TAKEN(s) && owner[s] != i && PREFERS(i, s))
#else
#define MAY(i, s)     (!TAKEN(s) && owner[s] != i && (PREFERS(i, s) || !SOMEBODY_WHO_PREFERS(s)))
#endif
#ifdef NO_YIELD
#define YIELDS(i, s)  (owner[s] == i && out[i])
#else
#define YIELDS(i, s)  (owner[s] == i && (out[i] || (!PREFERS(i, s) && SOMEBODY_WHO_PREFERS(s))))
#endif
#define VOUCHED(s)    ((owner[s] == FREE && left[s] <= done[s]) || (owner[s] != FREE && cur[owner[s]] <= done[s]))
#define HOLDS(i)      (owner[0] == i || owner[1] == i)

inline sound() {
	assert(VOUCHED(0));
	assert(VOUCHED(1))
}

/* take a slot, in a claim */
inline take(s) {
	if
	:: MAY(me, s) && owner[s] == FREE -> low = (left[s] < low -> left[s] : low); owner[s] = me
	:: MAY(me, s) && owner[s] != FREE -> low = (cur[owner[s]] < low -> cur[owner[s]] : low); epoch[owner[s]]++; owner[s] = me
	:: else
	fi
}

inline release(s) {
	owner[s] = FREE;
	left[s] = cur[me];
#ifndef NO_RELEASE_RAISE
	epoch[me]++;
#endif
	held = epoch[me];
	sound()
}

proctype Instance(byte me) {
	bool joined;            /* this process believes that it is part of the fleet */
	byte held;              /* the epoch that it believes in */
	bool busy;              /* a commit is computed and not sent */
	byte e, c;              /* what it was computed from */
	bool has0, has1;        /* for which slots */
	byte led;               /* the term this process believes it leads; 0: none */
	bool recording;
	byte low;

	do
	/* lock, then join: a new life, or the same process after the loss of its session */
	:: atomic { !lock[me] -> lock[me] = true; joined = false; led = 0; recording = false }
	:: atomic { lock[me] && !joined -> joined = true; hung[me] = false; epoch[me]++; held = epoch[me] }
	/* the claimer finds that it was claimed from: join again */
	:: atomic { joined && held != epoch[me] && !hung[me] -> joined = false }

	/* review: sit out, or take part again */
#ifndef NO_SITTING_OUT
	:: atomic { joined && !hung[me] && !out[me] && gone[me] && ANOTHER_CAN(me) -> out[me] = true }
	:: atomic { joined && !hung[me] && out[me] && (!gone[me] || !ANOTHER_WORKS(me)) -> out[me] = false }
#endif

	/* claim */
	:: atomic { joined && !hung[me] && held == epoch[me] && !out[me] && (MAY(me, 0) || MAY(me, 1)) ->
		low = 255;
		if
		:: HOLDS(me) -> low = cur[me]
		:: else
		fi;
		take(0);
		take(1);
#ifdef NO_MIN
		if
		:: cur[me] > 0
		:: else -> cur[me] = low
		fi;
#else
		cur[me] = low;
#endif
#ifndef NO_OWN_RAISE
		epoch[me]++;
#endif
		held = epoch[me];
		low = 0;
		sound()
	   }

	/* yield */
	:: atomic { joined && !hung[me] && held == epoch[me] && YIELDS(me, 0) -> release(0) }
	:: atomic { joined && !hung[me] && held == epoch[me] && YIELDS(me, 1) -> release(1) }
	/* a clean stop, slot by slot; it may come back */
	:: atomic { budget > 0 && joined && held == epoch[me] && owner[0] == me -> budget--; release(0) }
	:: atomic { budget > 0 && joined && held == epoch[me] && owner[1] == me -> budget--; release(1) }

	/* compute a commit of the next block, for what is held now */
	:: atomic { !busy && joined && !gone[me] && held == epoch[me] && HOLDS(me) && cur[me] < BLOCKS ->
		busy = true; e = held; c = cur[me]; has0 = (owner[0] == me); has1 = (owner[1] == me)
	   }
	/* send it: a zombie may, too, and what a former life has sent may arrive late */
	:: atomic { busy ->
		busy = false;
		if
#ifdef NO_FENCE
		:: cur[me] == c ->
#else
		:: cur[me] == c && epoch[me] == e ->
#endif
			assert(!has0 || owner[0] == me);
			assert(!has1 || owner[1] == me);
			if
			:: has0 && done[0] == c -> done[0]++
			:: else
			fi;
			if
			:: has1 && done[1] == c -> done[1]++
			:: else
			fi;
			cur[me] = c + 1;
			sound()
		:: else
		fi;
		e = 0; c = 0; has0 = false; has1 = false
	   }

#ifndef NO_FACTORY
	/* a reorganisation: everything back to the first block, once */
	:: d_step { !rolled && joined ->
		rolled = true;
		cur[0] = 0; cur[1] = 0; left[0] = 0; left[1] = 0; done[0] = 0; done[1] = 0;
#if N == 3
		cur[2] = 0;
#endif
		sound()
	   }

	/* take the leader lock, begin a term, and record discoveries */
	:: atomic { lock[me] && joined && leader == FREE -> leader = me }
	:: atomic { lock[me] && joined && leader == me && led == 0 -> term++; led = term; began = me }
	:: atomic { led > 0 && !recording -> recording = true }
	:: atomic { recording ->
		recording = false;
		if
#ifdef NO_TERM
		:: true -> assert(began == me)
#else
		:: led == term -> assert(began == me)
#endif
		:: else -> led = 0
		fi
	   }
#endif

	/* misfortunes: the session is lost, and the process goes on not knowing */
	:: atomic { budget > 0 && lock[me] -> budget--; lock[me] = false; if :: leader == me -> leader = FREE :: else fi }
	/* ... or it crashes, and forgets; what it has sent is on its way */
	:: atomic { budget > 0 && lock[me] -> budget--; lock[me] = false; joined = false; led = 0; recording = false; if :: leader == me -> leader = FREE :: else fi }
	/* ... or its claimer hangs, or its nodes are gone */
	:: atomic { budget > 0 && joined && !hung[me] -> budget--; hung[me] = true }
	:: atomic { budget > 0 && joined && !gone[me] -> budget--; gone[me] = true }
	od
}

/* what may mend itself, and need not: a claimer that hangs, and nodes that are gone */
active proctype World() {
	do
	:: hung[0] -> hung[0] = false
	:: hung[1] -> hung[1] = false
	:: gone[0] -> gone[0] = false
	:: gone[1] -> gone[1] = false
	:: true -> skip
	od
}

init {
	atomic {
		owner[0] = FREE; owner[1] = FREE;
		run Instance(0);
		run Instance(1);
#if N == 3
		run Instance(2)
#endif
	}
}

#define SERVED(s) (!ANYBODY(LIVES) || owner[s] != FREE && WORKS(owner[s]) && (PREFERS(owner[s], s) || !SOMEBODY_WHO_PREFERS(s)) && (CAN(owner[s]) || !ANYBODY(CAN)))
ltl served { <>[] (SERVED(0) && SERVED(1)) }
