/*
 * What an event_id says, across reorganisations: reorg.pml with contents apart from ids, and acknowledgement apart from deletion. Checked with Spin
 * by check.sh.
 *
 * ownership.pml shows that one instance at a time commits for a slot. This model takes that machinery as it is and asks what is stored and
 * published of one escrow, in slot 1, when the chain is reorganised deeper than the configured finality: at any moment, also between the
 * reading of a block and its commit, while the owner is behind the leader or ahead of it, and while its slot is claimed from the dead.
 *
 * The chain: block 1 is common to both branches; block 2 deploys the escrow; a transaction in block 3 has two events. On the new branch the
 * deployment is the same, another one, or not there; the transaction is the same, or its logs have moved by one, so that the id {tx}:{log index}
 * of its second event is that of the first one now (Q and PS), or it is not there. With FLIPS=2 the chain may come back to the old branch.
 *
 * Content and id are two things. An event_id is a base id and an occurrence. What is atomic here is one transaction there, or one reading:
 *
 *   serve      watch.SlotWatch.serve      the position, and the book as the registry has it
 *   late       ledger.Late                who is to be caught up
 *   read       source.Read                the next block, of the branch that is canonical at that moment; a lying node leaves an event out (OMITS)
 *   commit     ledger.CommitSlots         with what it deploys, unless its node hides that (MISSES); what it is requested; what reappears, what is
 *                                         lost; with what it retracts
 *   admit      SlotWatch.catchUp          the same without moving the cursor
 *   claim      partition.Claimer.take     the lowest cursor, with its hash
 *   found      ledger.CommitFactory       the registry, of what the owner has passed without it
 *   rollback   ledger.Rollback            by whoever stands on a block that is not canonical
 *   repair     ledger.Repair              what a first reading has left out is stored, and its publication requested
 *   replay     ledger.Replay              the publication of what was told of is requested once more (REPLAYS)
 *   send, delete                          publish.Publisher: Pub/Sub has the message, and the publisher hears so, or never does; the row goes
 *
 * Checked at each publication: an id has one content, is not published after its retraction, and twice only where the outcome of an attempt was unknown.
 * Checked when nothing is left to do (timeout): a consumer that adds on an event and removes on its retraction has exactly what is on the chain, and it came
 * in the order of the chain.
 *
 * A row stands for a message that waits, in the log of the slot or in the outbox: log.pml and order.pml are about these.
 *
 * The code does what is left out here: commits of several blocks (a commit is one block), several escrows and slots, events that are not
 * published, retention, wrong stored events that the verifier takes back (giveUp), releases of slots without a crash, lanes per slot, and the limits
 * of time. A retraction is one message here. Numbers of rows, and a database that forgets, are in order.pml.
 *
 * The negative checks take one rule out: NO_CONTENT (what has the id of an orphan is the orphan); NO_OCCURRENCE (ids are used again);
 * with OMITS=1, NO_TOLD (what was not told of is retracted too); NO_SENT (a row of an event that is lost is dropped, and no retraction follows, whether or not it was
 * sent); with OMITS=1 again, NO_REPAIR (nobody reads again). reorg.pml has those of the positions.
 */
#ifndef BUDGET
#define BUDGET 1        /* sessions lost, processes crashed */
#endif
#ifndef FLIPS
#define FLIPS 1
#endif
#ifndef LOST
#define LOST 1          /* answers of Pub/Sub that do not come */
#endif
#ifndef REPLAYS
#define REPLAYS 0
#endif
#ifndef OMITS
#define OMITS 0         /* events that a node leaves out */
#endif
#ifndef MISSES
#define MISSES 0        /* deployments that an owner does not see; the leader comes behind it, and does */
#endif
#define TOP 4           /* the newest block; the last ones are empty: cursors pass retract_after */
#define FREE 9
#define HASH(n) ((n) < 2 -> 0 : 1 + branch)

/* contents, and the base ids of their ids */
#define D 0             /* EscrowDeployed */
#define DM 1            /* another one, of another transaction */
#define P 2             /* Approved */
#define Q 3             /* EscrowReleased, of the same transaction */
#define PS 4            /* both moved by one */
#define QS 5
#define NONE 6
#define BASE(c) ((c) == PS -> Q : (c))
#define OCCS 3          /* occurrences of a base id */
#define EID(c, o) ((c) * OCCS + (o))
#define IDS 18
#define DEPLOYMENT(c) ((c) < P)

/* the chain */
bit branch;
byte renewed;           /* which deployment the new branch has: D, DM, or NONE */
byte moved;             /* what it has of the transaction: P (the same), PS (moved), or NONE */
#define DEPLOYS(h) (h == 1 -> D : renewed)
#define FIRST(h) (h == 1 -> P : moved)
#define ON(c) (DEPLOYMENT(c) -> DEPLOYS(1 + branch) == c : (FIRST(1 + branch) == P && (c == P || c == Q) || FIRST(1 + branch) == PS && (c == PS || c == QS)))

/* the database */
byte epoch[2]; byte cur[2] = 1; byte hash[2]; byte gen[2]; bool alive[2];
byte owner[2];
byte fcur = 1; byte fhash;
byte block[TOP + 1];            /* chain_blocks: 0 or the hash */
/* escrows and late_escrows: the deployment, whether it is active or orphaned, whether it waits to be caught up, up to where */
byte reg = NONE; bool live; bool late; byte mon;
byte ev[6];                     /* events: 0, or 1 + occurrence */
bool told[6];                   /* an outbox row of it was written */
byte asked[6];                  /* requests: 0, REPAIR or REPLAY */
#define REPAIR 1
#define REPLAY 2
byte orph[IDS];                 /* orphaned_events */
byte after;                     /* retract_after of those in state 1: the highest */
#define ORPHANED 1
#define LOSTFOR 2
#define RETRACTED 3
/* outbox: 2 * id + kind; a replay is a row of its event. since: written since the owner has the slot. What the publisher that has the slot remembers of
 * a row: that it was acknowledged and is to be deleted (way); that an answer was lost (doubt). again: a replay. */
#define ROWS 8
byte queue[ROWS]; byte queued; bool since[ROWS]; bool way[ROWS]; bool doubt[ROWS]; bool again[ROWS];
#define UNDERWAY (way[0] || way[1] || way[2] || way[3] || way[4] || way[5] || way[6] || way[7])
/* the truth about Pub/Sub, a bit per id: published, retracted, and published before something that comes first on the chain */
int published, retracted, stale;
#define BIT(i) (1 << (i))
#define HELD(i) ((published & BIT(i)) && !(retracted & BIT(i)))
byte budget = BUDGET; byte lost = LOST; byte omits = OMITS; byte misses = MISSES; byte replays = REPLAYS;
bool verified; int repaired;    /* ids of what the verifier stored: late, and out of turn */

/* working variables of one atomic step; zero outside */
hidden byte i, j, k, c0, o0; hidden byte found, fits;

inline push(id, kind, replay) {
	assert(queued < ROWS);
	queue[queued] = 2 * (id) + kind; since[queued] = true; way[queued] = false; doubt[queued] = false; again[queued] = replay;
	queued++
}

/* remove the row at index j */
inline drop() {
	do
	:: j + 1 < queued -> queue[j] = queue[j + 1]; since[j] = since[j + 1]; way[j] = way[j + 1]; doubt[j] = doubt[j + 1]; again[j] = again[j + 1]; j++
	:: else -> break
	od;
	queued--; queue[queued] = 0; since[queued] = false; way[queued] = false; doubt[queued] = false; again[queued] = false;
	j = 0
}

/* j: the index of a row, or queued */
inline find(code) {
	j = 0;
	do
	:: j < queued && queue[j] != (code) -> j++
	:: else -> break
	od
}

/* the first id of a content that is orphaned and open, in i; IDS: none */
inline openOrphan(c) {
	i = EID(c, 0);
	do
	:: i < EID(c, OCCS) && orph[i] != ORPHANED -> i++
	:: else -> break
	od;
	if :: i == EID(c, OCCS) -> i = IDS :: else -> skip fi
}

/* all open orphans are lost */
inline loseAll() {
	k = 0;
	do
	:: k < IDS -> if :: orph[k] == ORPHANED -> orph[k] = LOSTFOR :: else -> skip fi; k++
	:: else -> break
	od;
	k = 0
}

/* a content gets the first occurrence that no other content has used: o0 */
inline giveID(c) {
	o0 = 0; k = 0;
	do
	:: k < IDS ->
		c0 = k / OCCS;
		if
		:: orph[k] != 0 && BASE(c0) == BASE(c) && k % OCCS >= o0 -> o0 = k % OCCS + 1
		:: else -> skip
		fi;
		k++
	:: else -> break
	od;
#ifdef NO_OCCURRENCE
	o0 = 0;
#endif
	assert(o0 < OCCS);
	k = 0; c0 = 0
}

/* rank of a content in what its escrow publishes */
#define RANK(c) (DEPLOYMENT(c) -> 0 : ((c) == P || (c) == PS -> 1 : 2))

/* whether something that comes before content c is open, and is not it: fits is false then */
inline matches(c) {
	fits = true; k = 0;
	do
	:: k < IDS -> if :: orph[k] == ORPHANED && RANK(k / OCCS) < RANK(c) -> fits = false :: else -> skip fi; k++
	:: else -> break
	od;
	k = 0
}

/* an event is stored by the owner or the verifier; with its outbox row, if row; settles, if the storer owns slot 1 */
inline store(c, row, settles) {
	if
	:: ev[c] != 0 -> skip
	:: else ->
		openOrphan(c);
		matches(c);
#ifdef NO_CONTENT
		if :: i == IDS && BASE(c) != c -> openOrphan(BASE(c)) :: i == IDS && c == Q -> openOrphan(PS) :: else -> skip fi;
#endif
		if
		:: i < IDS && fits -> ev[c] = 1 + i % OCCS; orph[i] = 0; told[c] = true     /* it reappears; a row that waits keeps its place */
		:: else ->
			loseAll();
			if :: settles -> retract() :: else -> skip fi;
			giveID(c);
			ev[c] = 1 + o0;
			if :: row -> push(EID(c, o0), 0, false); told[c] = true :: else -> skip fi;
			o0 = 0
		fi;
		i = 0; fits = false
	fi
}

/* what a first reading has left out */
inline repair(c) {
	if
	:: ev[c] != 0 -> skip
	:: else ->
		store(c, false, false);
		if :: !told[c] -> asked[c] = REPAIR :: else -> skip fi;
		repaired = repaired | BIT(EID(c, ev[c] - 1))
	fi
}

inline rollback() {
	i = cur[0];
	if :: cur[1] > i -> i = cur[1] :: else -> skip fi;
	if :: fcur > i -> i = fcur :: else -> skip fi;
	i--;
#ifndef NO_HIGHEST
	/* a claim may have lowered the cursor that had been there */
	if :: i < 4 && block[4] != 0 -> i = 4
	:: i < 3 && block[4] == 0 && block[3] != 0 -> i = 3
	:: i < 2 && block[4] == 0 && block[3] == 0 && block[2] != 0 -> i = 2
	:: else -> skip fi;
#endif
	if :: i > after -> after = i :: else -> skip fi;
	i = 0;
	if :: fcur > 2 -> fcur = 2; fhash = 0 :: else -> skip fi;
	if :: cur[0] > 2 -> cur[0] = 2; hash[0] = 0 :: else -> skip fi;
	if :: cur[1] > 2 -> cur[1] = 2; hash[1] = 0 :: else -> skip fi;
#ifndef NO_GENERATION
	gen[0]++; gen[1]++;
#endif
	block[2] = 0; block[3] = 0; block[4] = 0;
	verified = false;
	if
	:: reg != NONE && live && !told[reg] -> reg = NONE
	:: else -> skip
	fi;
	/* what was not told of is forgotten; requests end with their event */
	do
	:: i < NONE && ev[i] != 0 ->
		if
#ifndef NO_TOLD
		:: told[i] ->
#else
		:: true ->
#endif
			orph[EID(i, ev[i] - 1)] = ORPHANED
		:: else -> skip
		fi;
		ev[i] = 0; told[i] = false; asked[i] = 0; i++
	:: i < NONE && ev[i] == 0 -> i++
	:: else -> break
	od;
	i = 0;
	live = false; late = false; mon = 0
}

#ifndef NO_PATIENCE
#define PASSED (after < cur[owner[1]] && after < fcur && !late)
#else
#define PASSED (after < cur[owner[1]])
#endif

/* by the owner of slot 1: what is lost, and what will not reappear */
inline retract() {
	k = 0;
	do
	:: k < IDS && (orph[k] == LOSTFOR || orph[k] == ORPHANED && PASSED) ->
		find(2 * k);
		if
#ifdef NO_SENT
		:: j < queued -> drop(); orph[k] = RETRACTED
#else
		:: j < queued -> skip   /* its event goes first */
#endif
		:: else -> orph[k] = RETRACTED; push(k, 1, false)
		fi;
		j = 0;
		if :: orph[k] == RETRACTED && DEPLOYMENT(k / OCCS) && !live && reg == k / OCCS -> reg = NONE :: else -> skip fi;
		k++
	:: k < IDS && !(orph[k] == LOSTFOR || orph[k] == ORPHANED && PASSED) -> k++
	:: else -> break
	od;
	k = 0
}

/* the deployment is stored, and its escrow registered, if it was not */
inline deploys(c) {
	store(c, true, true);
	reg = c; live = true; late = false; mon = 0
}

/* the owner puts into the outbox what it is requested, in any order of their writers; what was told of meanwhile stays as it is */
inline answer() {
	i = 0;
	do
	:: i < NONE && asked[i] != 0 ->
		if
		:: ev[i] != 0 && (asked[i] == REPLAY || !told[i]) -> push(EID(i, ev[i] - 1), 0, asked[i] == REPLAY); told[i] = true
		:: else -> skip
		fi;
		asked[i] = 0; i++
	:: i < NONE && asked[i] == 0 -> i++
	:: else -> break
	od;
	i = 0
}
#define ASKED (asked[0] + asked[1] + asked[2] + asked[3] + asked[4] + asked[5] > 0)

/* both events of block 3, as a node shows them */
inline both(h) {
	if
	:: FIRST(h) != NONE ->
		if
		:: omits > 0 -> omits--
		:: true -> store(FIRST(h), true, true)
		fi;
		store(FIRST(h) + 1, true, true)
	:: else -> skip
	fi
}

#define MINE (epoch[me] == e && cur[me] == c && hash[me] == oh && gen[me] == g)
#define STALE (oh != 0 && oh != HASH(c - 1))
#define HOLDS (owner[0] == me || owner[1] == me)
#define FORGET serving = false; busy = false; waits = false; book = false; br = 0

/* the owner of slot 1 has changed, or its process has: what was remembered of rows is gone */
inline forgetRows(crash) {
	i = 0;
	do
	:: i < queued -> way[i] = false; doubt[i] = false;
#ifndef NO_SINCE
		since[i] = false;
#endif
		i++
	:: else -> break
	od;
	i = 0
}

#define LOSTONE(c) (orph[c * 3] == LOSTFOR || orph[c * 3 + 1] == LOSTFOR || orph[c * 3 + 2] == LOSTFOR)
#define OPENONE(c) (orph[c * 3] == ORPHANED || orph[c * 3 + 1] == ORPHANED || orph[c * 3 + 2] == ORPHANED)
#define ANYLOST (LOSTONE(0) || LOSTONE(1) || LOSTONE(2) || LOSTONE(3) || LOSTONE(4) || LOSTONE(5))
#define ANYOPEN (OPENONE(0) || OPENONE(1) || OPENONE(2) || OPENONE(3) || OPENONE(4) || OPENONE(5))
#define OPEN (ANYLOST || ANYOPEN && PASSED)

proctype Instance(byte me) {
	byte held;
	bool serving; byte e, c, oh, g; bool has; bool book;
	bool waits; byte lreg, lmon; bool ahead;
	bool busy; byte br;
	byte low, lowh;

	held = 1;
	do
	:: atomic { !alive[me] -> alive[me] = true; epoch[me]++; held = epoch[me]; FORGET }
	/* the session is lost, and the process goes on not knowing */
	:: atomic { budget > 0 && alive[me] -> budget--; alive[me] = false }
	/* ... or it crashes; the next life has the slots of this one until somebody claims them */
	:: atomic { budget > 0 && alive[me] && owner[1] == me -> budget--; alive[me] = false; FORGET; forgetRows(true) }

	:: atomic { alive[me] && held == epoch[me] && !alive[1 - me] && (owner[0] == 1 - me || owner[1] == 1 - me) ->
		low = cur[1 - me]; lowh = hash[1 - me];
		if
		:: HOLDS && cur[me] <= low -> low = cur[me]; lowh = hash[me]
		:: else -> skip
		fi;
		if :: owner[1] != me -> forgetRows(false) :: else -> skip fi;
		owner[0] = me; owner[1] = me; epoch[1 - me]++; epoch[me]++; held = epoch[me];
		cur[me] = low; hash[me] = lowh; low = 0; lowh = 0
	   }

	/* serve: everything that was known is dropped */
	:: atomic { (!serving || e != held) && held == epoch[me] && HOLDS ->
		FORGET; serving = true;
		e = held; c = cur[me]; oh = hash[me]; g = gen[me];
		has = (owner[1] == me);
		book = (has && reg != NONE && live && !late && c > 2);
		ahead = (has && reg != NONE && live && c <= 2)
	   }

	:: atomic { serving && !waits && has && late && c > 2 -> waits = true; lreg = reg; lmon = mon }

	/* the block before the cursor is not canonical: roll back, unless somebody has */
	:: atomic { serving && STALE ->
		if
		:: (cur[0] == c && hash[0] == oh) || (cur[1] == c && hash[1] == oh) || (fcur == c && fhash == oh) -> rollback()
		:: else -> skip
		fi;
		FORGET
	   }

	:: atomic { serving && !busy && !STALE && c <= TOP -> busy = true; br = HASH(c) }

	:: atomic { serving && busy ->
		busy = false;
		if
		:: !MINE -> FORGET
#ifndef NO_BRANCH
		:: MINE && block[c] != 0 && block[c] != br ->    /* somebody stored another block of that height */
			if
			:: block[c] != HASH(c) -> rollback()
			:: else -> skip
			fi;
			FORGET
		:: MINE && (block[c] == 0 || block[c] == br) ->
#else
		:: else ->
#endif
			cur[me] = c + 1; hash[me] = br;
			if :: br != 0 && block[c] == 0 -> block[c] = br :: else -> skip fi;
			if :: owner[1] == me -> answer() :: else -> skip fi;
			if
			:: c == 2 && has && DEPLOYS(br) != NONE -> deploys(DEPLOYS(br)); book = true
			:: c == 2 && has && DEPLOYS(br) != NONE && misses > 0 && (fcur <= 2 || ahead) ->
				misses--;
				if :: ahead -> late = true; mon = 1 :: else -> skip fi
			:: c == 3 && book -> both(br)
			:: else -> skip
			fi;
			c = c + 1; oh = br;
			if :: owner[1] == me -> retract() :: else -> skip fi
		fi;
		br = 0
	   }

	/* admit without moving the cursor, with its deployment and what it has emitted since */
	:: atomic { serving && waits && !STALE ->
		if
		:: MINE ->
			if :: owner[1] == me -> answer() :: else -> skip fi;
			deploys(lreg);
			if :: c > 3 && lmon < 3 -> both(oh) :: else -> skip fi;
			book = true; waits = false;
			if :: owner[1] == me -> retract() :: else -> skip fi
		:: else -> FORGET
		fi
	   }

	/* with nothing new to process the next look retracts, as the next block would */
	:: atomic { serving && !busy && !waits && MINE && c > TOP && owner[1] == me && (OPEN || ASKED) -> answer(); retract() }
	od
}

proctype Leader() {
	byte c, oh, br; bool busy;
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
			:: c == 2 && DEPLOYS(br) != NONE && !(reg == DEPLOYS(br) && live) && cur[owner[1]] > 2 ->
				reg = DEPLOYS(br); live = true; late = true; mon = 1
			:: else -> skip
			fi
		fi;
		c = 0; oh = 0; br = 0
	   }
	/* the verifier: what a first reading has left out of a range that all have passed */
#if REPLAYS > 0
	:: atomic { replays > 0 ->
		replays--;
		if
		:: ev[D] != 0 && told[D] -> asked[D] = REPLAY
		:: ev[P] != 0 && told[P] -> asked[P] = REPLAY
		:: ev[Q] != 0 && told[Q] -> asked[Q] = REPLAY
		:: true -> skip
		fi
	   }
#endif
#ifndef NO_REPAIR
	:: atomic { OMITS > 0 && !verified && fcur > 3 && cur[owner[1]] > 3 && block[3] == HASH(3) && fhash == HASH(fcur - 1) && (!late || mon > 3) ->
		verified = true;
		if
		:: FIRST(block[3]) != NONE && reg != NONE && live && !late ->
			repair(FIRST(block[3]));
			repair(FIRST(block[3]) + 1)
		:: else -> skip
		fi
	   }
#endif
	od
}

/* row i is next: an earlier one is acknowledged */
#define EVENT(i) (queue[i] % 2 == 0)
#define ID(i) (queue[i] / 2)
#define SENDS(i) (i < queued && !way[i])

proctype Publisher() {
	do
	/* send: Pub/Sub has it */
	:: atomic { SENDS(0) || SENDS(1) || SENDS(2) || SENDS(3) || SENDS(4) || SENDS(5) || SENDS(6) || SENDS(7) ->
		i = 0;
		do
		:: !SENDS(i) -> i++   /* acknowledged */
		:: else -> break
		od;
		if
		:: EVENT(i) ->
			k = ID(i); c0 = k / OCCS;
			assert(!(retracted & BIT(k)));
			assert(!(published & BIT(k)) || !since[i] || doubt[i] || again[i]);      /* twice only where the outcome is unknown, or on request */
			assert(!(BASE(c0) != c0 && (published & BIT(EID(BASE(c0), k % OCCS)))) && !(c0 == Q && (published & BIT(EID(PS, k % OCCS)))));
			if
			:: !(published & BIT(k)) ->
				published = published | BIT(k);
				/* whatever comes after it on the chain and was published before it is out of order, unless it is taken back; what the
				 * verifier has stored comes late, as the code says of it */
				if
				:: repaired & BIT(k) -> skip
				:: else ->
				if
				:: RANK(c0) == 0 -> stale = stale | (published & (7 << EID(P, 0) | 7 << EID(Q, 0) | 7 << EID(PS, 0) | 7 << EID(QS, 0)))
				:: RANK(c0) == 1 -> stale = stale | (published & (7 << EID(Q, 0) | 7 << EID(QS, 0)))
				:: else -> skip
				fi
				fi
			:: else -> skip
			fi
		:: else ->
			k = ID(i);
			assert(published & BIT(k));
			retracted = retracted | BIT(k)
		fi;
		if
		:: true -> way[i] = true; doubt[i] = false
		:: lost > 0 -> lost--; doubt[i] = true       /* nobody knows: it is sent again */
		fi;
		i = 0; k = 0; c0 = 0
	   }
	/* the deletion of the oldest acknowledged row */
	:: atomic { UNDERWAY ->
		do
		:: !way[j] -> j++
		:: else -> break
		od;
		drop()
	   }
	od
}

#define HOLDSONE(c) (HELD(EID(c, 0)) || HELD(EID(c, 1)) || HELD(EID(c, 2)))
#define HOLDSTWO(c) (HELD(EID(c, 0)) && HELD(EID(c, 1)) || HELD(EID(c, 0)) && HELD(EID(c, 2)) || HELD(EID(c, 1)) && HELD(EID(c, 2)))
#define HELDSTALE(c) (HELD(EID(c, 0)) && (stale & BIT(EID(c, 0))) || HELD(EID(c, 1)) && (stale & BIT(EID(c, 1))) || HELD(EID(c, 2)) && (stale & BIT(EID(c, 2))))
#define EXPECTED(c) (ON(c) && (DEPLOYMENT(c) || DEPLOYS(1 + branch) != NONE))
#define RIGHT(c) (EXPECTED(c) -> (ev[c] != 0 && HOLDSONE(c) && !HOLDSTWO(c)) : (ev[c] == 0 && !HOLDSONE(c)))

init {
	atomic {
		if :: renewed = D :: renewed = DM :: renewed = NONE fi;
		if :: renewed == NONE -> moved = NONE :: else -> if :: moved = P :: moved = PS :: moved = NONE fi fi;
		epoch[0] = 1; epoch[1] = 1; alive[0] = true; alive[1] = true; owner[0] = 0; owner[1] = 1;
		run Instance(0); run Instance(1); run Leader(); run Publisher()
	};
	if :: branch = 1 :: skip fi;
#if FLIPS > 1
	if :: branch == 1 -> branch = 0 :: skip fi;
#endif
	timeout -> atomic {
		assert(RIGHT(D)); assert(RIGHT(DM)); assert(RIGHT(P)); assert(RIGHT(Q)); assert(RIGHT(PS)); assert(RIGHT(QS));
		/* in order: what is there and was published too early has been published again under another id */
		assert(!HELDSTALE(P)); assert(!HELDSTALE(Q)); assert(!HELDSTALE(PS)); assert(!HELDSTALE(QS))
	}
}
