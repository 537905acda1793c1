/*
 * The ownership protocol: who may commit for which slot, and from which block on. Checked with Spin by check.sh.
 *
 * Two instances, two slots, a few blocks, and a budget of misfortunes: an instance loses its session (it is frozen, cut off, or its session is
 * terminated) and goes on as a zombie, or it crashes. What is atomic here is one transaction of the database there:
 *
 *   join      partition.Claimer.Join       raise the own epoch, take back what nobody has claimed
 *   claim     partition.Claimer.claim      raise the epochs of the dead owners and the own one, take their slots and free ones, go on from the lowest cursor
 *   release   partition.Claimer.Release    raise the own epoch, leave the cursor in the slot
 *   commit    ledger.CommitSlots           only if epoch and cursor are those it was computed from
 *   rollback  ledger.Rollback              everybody's cursor back to the fork
 *   lead      election.Elector             take the leader lock, raise the term
 *   record    ledger.CommitFactory         only under the term that leads
 *
 * A commit is computed before it is sent, so claims, releases and misfortunes fall in between: that is what epochs are for.
 *
 * Safety (assertions): only the owner of a slot commits for it; no cursor passes a block that was not committed for the slot it vouches for; only the
 * leader records. Liveness (ltl): when misfortunes end, every slot is owned by the living, for good.
 *
 * The negative checks take one rule out, and Spin has to find what the rule prevents: -DNO_FENCE (commits do not look at the epoch),
 * -DNO_OWN_RAISE (a claim does not raise the claimer's own epoch), -DNO_MIN (a claimer keeps its own cursor), -DNO_TERM (the factory's commits do not look at the
 * term).
 */
#ifndef BLOCKS
#define BLOCKS 2
#endif
#ifndef BUDGET
#define BUDGET 2
#endif
#define N 2
#define SLOTS 2
#define FREE 9

/* the database */
byte epoch[N];          /* cursors.epoch */
byte cur[N];            /* cursors.next_block */
bool alive[N];          /* the session's lock is in pg_locks */
byte owner[SLOTS];      /* slot_ownership.owner */
byte left[SLOTS];       /* slot_ownership.next_block, while free */
byte leader = FREE;     /* who holds the leader lock */
byte term;              /* leadership.epoch */
/* the truth */
byte done[SLOTS];       /* next block that nobody has committed for the slot */
byte budget = BUDGET;
bool rolled;

#define VOUCHED(s) ((owner[s] == FREE && left[s] <= done[s]) || (owner[s] != FREE && cur[owner[s]] <= done[s]))
#define SERVED(s)  (owner[s] != FREE && alive[owner[s]])
#define HOLDS(i)   (owner[0] == i || owner[1] == i)

inline sound() {
	assert(VOUCHED(0));
	assert(VOUCHED(1))
}

proctype Instance(byte me) {
	byte held;              /* the epoch this process believes in */
	bool busy;              /* a commit is computed and not sent */
	byte e, c;              /* what it was computed from */
	bool has0, has1;        /* for which slots */
	byte led;               /* the term this process believes it leads; 0: none */
	bool recording;
	byte low;

	do
	/* join: a new life, or the same process after the loss of its session */
	:: atomic { !alive[me] ->
		alive[me] = true;
		epoch[me]++;
		held = epoch[me];
		led = 0;
		busy = false;
		recording = false
	   }

	/* claim what is free or owned by the dead */
	:: atomic { alive[me] && held == epoch[me] && (!SERVED(0) || !SERVED(1)) ->
		low = 255;
		if
		:: HOLDS(me) -> low = cur[me]
		:: else
		fi;
		if
		:: owner[0] == FREE -> low = (left[0] < low -> left[0] : low); owner[0] = me
		:: owner[0] == 1 - me && !alive[1 - me] -> low = (cur[1 - me] < low -> cur[1 - me] : low); owner[0] = me; epoch[1 - me]++
		:: else
		fi;
		if
		:: owner[1] == FREE -> low = (left[1] < low -> left[1] : low); owner[1] = me
		:: owner[1] == 1 - me && !alive[1 - me] -> low = (cur[1 - me] < low -> cur[1 - me] : low); owner[1] = me; epoch[1 - me]++
		:: else
		fi;
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

	/* release a slot: a yield, or a clean stop; a few times only */
	:: atomic { budget > 0 && alive[me] && held == epoch[me] && owner[0] == me -> budget--; owner[0] = FREE; left[0] = cur[me]; epoch[me]++; held = epoch[me]; sound() }
	:: atomic { budget > 0 && alive[me] && held == epoch[me] && owner[1] == me -> budget--; owner[1] = FREE; left[1] = cur[me]; epoch[me]++; held = epoch[me]; sound() }

	/* compute a commit of the next block, for what is held now */
	:: atomic { !busy && held == epoch[me] && HOLDS(me) && cur[me] < BLOCKS ->
		busy = true; e = held; c = cur[me]; has0 = (owner[0] == me); has1 = (owner[1] == me)
	   }
	/* send it: a zombie may, too */
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

	/* a reorganisation: everything back to the first block, once */
	:: atomic { !rolled && alive[me] ->
		rolled = true;
		cur[0] = 0; cur[1] = 0; left[0] = 0; left[1] = 0; done[0] = 0; done[1] = 0;
		sound()
	   }

	/* lead, and record discoveries */
	:: atomic { alive[me] && leader == FREE -> leader = me; term++; led = term }
	:: atomic { led > 0 && !recording -> recording = true }
	:: atomic { recording ->
		recording = false;
		if
#ifdef NO_TERM
		:: true -> assert(leader == me)
#else
		:: led == term -> assert(leader == me || leader == FREE)
#endif
		:: else -> led = 0
		fi
	   }

	/* misfortunes: the session is lost, and the process goes on not knowing */
	:: atomic { budget > 0 && alive[me] -> budget--; alive[me] = false; if :: leader == me -> leader = FREE :: else fi }
	/* ... or it crashes, and forgets */
	:: atomic { budget > 0 && alive[me] -> budget--; alive[me] = false; busy = false; led = 0; recording = false; if :: leader == me -> leader = FREE :: else fi }
	od
}

init {
	atomic {
		owner[0] = FREE; owner[1] = FREE;
		run Instance(0);
		run Instance(1)
	}
}

#define WHOLE (SERVED(0) && SERVED(1))
ltl served { <>[] WHOLE }
