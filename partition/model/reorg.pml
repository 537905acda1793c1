/*
 * Discovery, admission, reorganisation and retraction, while slots change hands. Checked with Spin by check.sh.
 *
 * ownership.pml shows that one instance at a time commits for a slot. This model takes that machinery as it is and asks what is stored and
 * published of one escrow, in slot 1, when the chain is reorganised deeper than the configured finality: at any moment, also between the
 * reading of a block and its commit, while the owner is behind the leader or ahead of it, and while its slot is claimed from the dead.
 *
 * The chain: block 1 is common to both branches; block 2 deploys the escrow; block 3 has one approval. On the new branch the deployment is there with
 * the same event_id (D1), with another one (D2: its log index moved), or not at all; the approval (AP) is there or is not. What is atomic here
 * is one transaction there, or one reading:
 *
 *   serve      watch.SlotWatch.serve      the position, and the book as the registry has it; what is ahead of the cursor
 *   late       ledger.Late                who is to be caught up
 *   read       source.Read                the next block, of the branch that is canonical at that moment
 *   commit     ledger.CommitSlots         with what it deploys, unless its node hides that (MISSES); with what it retracts
 *   admit      SlotWatch.catchUp          the same without moving the cursor
 *   claim      partition.Claimer.take     the lowest cursor, with its hash
 *   found      ledger.CommitFactory       the registry, of what the owner has passed without it
 *   rollback   ledger.Rollback            by whoever stands on a block that is not canonical
 *   publish    publish.Publisher          the lowest row, acknowledged and deleted at once
 *
 * Checked when nothing is left to do (timeout): what is on the chain is canonical in the database and was published once, in order, and was not
 * retracted; what is not on the chain was retracted as often as it was published.
 *
 * A row stands for a message that waits, in the log of the slot or in the outbox: log.pml and order.pml are about these.
 *
 * Left out, and in identity.pml: contents apart from ids, the window between acknowledgement and deletion, answers that are lost, nodes that lie,
 * the verifier, replays. In order.pml: numbers of rows, and what reads them. Left out there too: ranges (a commit is one block). identity.pml does
 * not replace this model: without the rule NO_PATIENCE Spin finds a violation here, and there, without crashes and lost answers (5 million states), none.
 */
#ifndef BUDGET
#define BUDGET 1        /* sessions lost */
#endif
#ifndef MISSES
#define MISSES 1        /* deployments that an owner does not see; the leader comes behind it, and does */
#endif
#define TOP 4           /* the newest block; the last two are empty: cursors pass retract_after */
#define FREE 9
#define HASH(n) ((n) < 2 -> 0 : 1 + branch)

#define D1 0
#define D2 1
#define AP 2

#define NONE 0
#define CANONICAL 1
#define ORPHANED 2
#define RETRACTED 3
#define ACTIVE 1

/* the chain */
bit branch;
byte renewed;           /* which deployment the new branch has: D1, D2, or FREE for none */
bit approves;           /* whether it has the approval */
#define DEPLOYS(h) (h == 1 -> D1 : renewed)
#define APPROVES(h) (h == 1 || approves)

/* the database */
byte epoch[2]; byte cur[2] = 1; byte hash[2]; byte gen[2]; bool alive[2];
byte owner[2];
byte fcur = 1; byte fhash; byte fgen;
byte block[TOP + 1];            /* chain_blocks: 0 or the hash */
byte reg;                       /* escrow_registry: NONE, ACTIVE, ORPHANED */
byte eid; bool caught; byte mon;
byte state[3]; byte after[3];   /* processed_events: state, retract_after */
byte queue[6]; byte queued;     /* outbox: 2 * event + kind */
/* the truth about Pub/Sub */
byte published[3]; byte retracted[3];
byte budget = BUDGET; byte misses = MISSES;

inline push(id, kind) { assert(queued < 6); queue[queued] = 2 * (id) + kind; queued++ }

/* remove the row at index k */
inline drop(k) {
	j = k;
	do
	:: j + 1 < queued -> queue[j] = queue[j + 1]; j++
	:: else -> break
	od;
	queued--; queue[queued] = 0
}

/* an event row of id is in the outbox */
#define WAITS(id) (queue[0] == 2 * (id) && queued > 0 || queue[1] == 2 * (id) && queued > 1 || queue[2] == 2 * (id) && queued > 2 || queue[3] == 2 * (id) && queued > 3 || queue[4] == 2 * (id) && queued > 4 || queue[5] == 2 * (id) && queued > 5)

/* an event is stored, with its outbox row, unless it was published and reappears */
inline store(id) {
	if
	:: state[id] == NONE || state[id] == RETRACTED -> push(id, 0)
	:: else -> skip
	fi;
	state[id] = CANONICAL; after[id] = 0
}

inline rollback() {
	high = cur[0];
	if :: cur[1] > high -> high = cur[1] :: else -> skip fi;
	if :: fcur > high -> high = fcur :: else -> skip fi;
	high--;
#ifndef NO_HIGHEST
	/* a claim may have lowered the cursor that had been there */
	if :: high < 4 && block[4] != 0 -> high = 4
	:: high < 3 && block[4] == 0 && block[3] != 0 -> high = 3
	:: high < 2 && block[4] == 0 && block[3] == 0 && block[2] != 0 -> high = 2
	:: else -> skip fi;
#endif
	if :: fcur > 2 -> fcur = 2; fhash = 0 :: else -> skip fi;
	if :: cur[0] > 2 -> cur[0] = 2; hash[0] = 0 :: else -> skip fi;
	if :: cur[1] > 2 -> cur[1] = 2; hash[1] = 0 :: else -> skip fi;
#ifndef NO_GENERATION
	gen[0]++; gen[1]++;
#endif
	block[2] = 0; block[3] = 0; block[4] = 0;
	if
	:: reg != NONE && state[eid] == CANONICAL -> reg = ORPHANED; caught = false
	:: reg == ACTIVE && state[eid] != CANONICAL -> reg = NONE; eid = 0; caught = false; mon = 0      /* registered, and not stored yet */
	:: else -> skip
	fi;
	if :: reg != NONE && mon > 1 -> mon = 1 :: else -> skip fi;
	k = 0;
	do
	:: k < 3 && state[k] == CANONICAL -> state[k] = ORPHANED; after[k] = high; k++
	:: k < 3 && state[k] == ORPHANED -> if :: high > after[k] -> after[k] = high :: else -> skip fi; k++
	:: k < 3 && state[k] != CANONICAL && state[k] != ORPHANED -> k++
	:: else -> break
	od;
	k = 0; high = 0
}

#define PASSED(id) (state[id] == ORPHANED && after[id] < cur[me])
#ifndef NO_PATIENCE
#define DUE(id) (PASSED(id) && after[id] < fcur && !(reg == ACTIVE && !caught))
#else
#define DUE(id) (PASSED(id) && (id == AP || after[id] < fcur))
#endif

inline retract1(id) {
	if
	:: DUE(id) && !WAITS(id) ->     /* its event goes first */
		state[id] = RETRACTED; after[id] = 0;
		if
		:: id != AP && reg == ORPHANED && eid == id -> reg = NONE; eid = 0; mon = 0
		:: else -> skip
		fi;
		push(id, 1)
	:: else -> skip
	fi
}

inline retract() {
	if
	:: owner[1] == me -> retract1(D1); retract1(D2); retract1(AP)
	:: else -> skip
	fi
}

/* the deployment is stored, and its escrow registered, if it was not */
inline deploys(id) {
	store(id);
	reg = ACTIVE; eid = id; caught = true; mon = 0
}

#define MINE (epoch[me] == e && cur[me] == c && hash[me] == oh && gen[me] == g)
#define STALE (oh != 0 && oh != HASH(c - 1))
#define HOLDS (owner[0] == me || owner[1] == me)

proctype Instance(byte me) {
	byte held;
	bool serving; byte e, c, oh, g; bool has; bool book;
	bool late; byte leid, lmon;
	bool ahead;                     /* the escrow is registered, and its deployment is not below the cursor: it will be met */
	bool busy; byte br;
	byte low; byte j, k, high;

	held = 1;
	do
	:: atomic { !alive[me] -> alive[me] = true; epoch[me]++; held = epoch[me]; serving = false; busy = false; late = false; book = false }
	:: atomic { budget > 0 && alive[me] -> budget--; alive[me] = false }

	:: atomic { alive[me] && held == epoch[me] && owner[1 - me] == 1 - me && !alive[1 - me] || alive[me] && held == epoch[me] && owner[me] == 1 - me && !alive[1 - me] ->
		low = cur[1 - me]; j = hash[1 - me];
		if
		:: HOLDS && cur[me] <= low -> low = cur[me]; j = hash[me]
		:: else -> skip
		fi;
		owner[0] = me; owner[1] = me; epoch[1 - me]++; epoch[me]++; held = epoch[me];
		cur[me] = low; hash[me] = j; low = 0; j = 0
	   }

	/* serve: everything that was known is dropped */
	:: atomic { (!serving || e != held) && held == epoch[me] && HOLDS ->
		serving = true; busy = false; late = false; br = 0;
		e = held; c = cur[me]; oh = hash[me]; g = gen[me];
		has = (owner[1] == me);
		book = (has && reg == ACTIVE && caught && c > 2);
#ifndef NO_AHEAD
		ahead = (has && reg == ACTIVE && c <= 2)
#endif
	   }

	:: atomic { serving && !late && has && reg == ACTIVE && !caught && c > 2 -> late = true; leid = eid; lmon = mon }

	/* the block before the cursor is not canonical: roll back, unless somebody has */
	:: atomic { serving && STALE ->
		if
		:: (cur[0] == c && hash[0] == oh) || (cur[1] == c && hash[1] == oh) || (fcur == c && fhash == oh) -> rollback()
		:: else -> skip
		fi;
		serving = false; busy = false; late = false; book = false
	   }

	:: atomic { serving && !busy && !STALE && c <= TOP -> busy = true; br = HASH(c) }

	:: atomic { serving && busy ->
		busy = false;
		if
		:: !MINE -> serving = false; late = false; book = false
#ifndef NO_BRANCH
		:: MINE && block[c] != 0 && block[c] != br ->    /* somebody stored another block of that height */
			if
			:: block[c] != HASH(c) -> rollback()
			:: else -> skip
			fi;
			serving = false; late = false; book = false
		:: MINE && (block[c] == 0 || block[c] == br) ->
#else
		:: else ->
#endif
			cur[me] = c + 1; hash[me] = br;
			if :: br != 0 && block[c] == 0 -> block[c] = br :: else -> skip fi;
			if
			:: c == 2 && has && DEPLOYS(br) != FREE -> deploys(DEPLOYS(br)); book = true
			:: c == 2 && has && DEPLOYS(br) != FREE && misses > 0 && (fcur <= 2 || ahead) ->
				misses--;
				if :: ahead -> caught = false; mon = 1 :: else -> skip fi /* it is registered, so it is looked for */
			:: c == 3 && APPROVES(br) && book -> store(AP)
			:: else -> skip
			fi;
			c = c + 1; oh = br;
			retract()
		fi;
		br = 0
	   }

	/* admit without moving the cursor, with its deployment and what it has emitted since */
	:: atomic { serving && late && !STALE ->
		if
		:: MINE ->
			deploys(leid);
			if :: c > 3 && lmon < 3 && APPROVES(oh) -> store(AP) :: else -> skip fi;
			book = true; late = false;
			retract()
		:: else -> serving = false; busy = false; late = false; book = false
		fi
	   }

	/* with nothing new to process the next look retracts, as the next block would */
	:: atomic { serving && !busy && !late && MINE && c > TOP && owner[1] == me && (DUE(D1) && !WAITS(D1) || DUE(D2) && !WAITS(D2) || DUE(AP) && !WAITS(AP)) -> retract() }
	od
}

proctype Leader() {
	byte c, oh, br; bool busy; byte j, k, high;
	do
	:: atomic { !busy && fcur <= TOP && (fhash == 0 || fhash == HASH(fcur - 1)) -> busy = true; c = fcur; oh = fhash; br = HASH(c) }
	:: atomic { !busy && fhash != 0 && fhash != HASH(fcur - 1) -> rollback() }
	:: atomic { busy ->
		busy = false;
		if
		:: fcur != c || fhash != oh -> skip
#ifndef NO_BRANCH
		:: fcur == c && fhash == oh && block[c] != 0 && block[c] != br -> if :: block[c] != HASH(c) -> rollback() :: else -> skip fi
		:: fcur == c && fhash == oh && (block[c] == 0 || block[c] == br) ->
#else
		:: else ->
#endif
			fcur = c + 1; fhash = br;
			if :: br != 0 && block[c] == 0 -> block[c] = br :: else -> skip fi;
			if
#ifndef NO_LATE
			:: c == 2 && DEPLOYS(br) != FREE && reg != ACTIVE && cur[owner[1]] > 2 ->
				reg = ACTIVE; eid = DEPLOYS(br); caught = false; mon = 1
#endif
			:: else -> skip
			fi
		fi;
		c = 0; oh = 0; br = 0
	   }
	od
}

#define SAID (published[D1] - retracted[D1] + published[D2] - retracted[D2])

#define READY(i) (i < queued)

proctype Publisher() {
	byte i, j, id;
	do
	:: atomic { READY(0) ->
		id = queue[0] / 2;
		if
		:: queue[0] % 2 == 0 ->
			assert(id != AP || SAID > 0);   /* in order: its deployment was published */
			published[id]++
		:: else ->
			assert(published[id] > retracted[id]);  /* behind its event */
			retracted[id]++
		fi;
		drop(0);
		i = 0; j = 0; id = 0
	   }
	od
}

#define ON(id) (id == AP -> (branch == 0 || (approves && renewed != FREE)) : (branch == 0 && id == D1 || branch == 1 && renewed == id))
#define RIGHT(id) (ON(id) -> (state[id] == CANONICAL && published[id] == 1 && retracted[id] == 0) : (state[id] != CANONICAL && state[id] != ORPHANED && published[id] == retracted[id]))

init {
	atomic {
		if :: renewed = D1 :: renewed = D2 :: renewed = FREE fi;
		if :: renewed != FREE -> approves = 1 :: approves = 0 fi;
		epoch[0] = 1; epoch[1] = 1; alive[0] = true; alive[1] = true; owner[0] = 0; owner[1] = 1;
		run Instance(0); run Instance(1); run Leader(); run Publisher()
	};
	if :: branch = 1 :: skip fi;
#define DONE(i) ((cur[i] == TOP + 1 && hash[i] == HASH(TOP)) || (owner[0] != i && owner[1] != i))
#ifdef QUIET
	(fcur == TOP + 1 && fhash == HASH(TOP) && DONE(0) && DONE(1) && !(reg == ACTIVE && !caught) && !READY(0)
		&& state[0] != ORPHANED && state[1] != ORPHANED && state[2] != ORPHANED) ->
	atomic {
#else
	timeout -> atomic {
#endif
		assert(RIGHT(D1)); assert(RIGHT(D2)); assert(RIGHT(AP))
	}
}
