/*
 * The position log of one slot while it changes hands: what is acknowledged, what is known, what is written. Checked with Spin by check.sh.
 *
 * Two instances. Slot 1 has the events; slot 0 has none, and is there so that who takes it goes on from a lower cursor. The chain has an event of slot 1
 * in each of three blocks, so block and place are one: those in 1 and 3 are of one escrow, X, and the one in 2 is of another, Y. A branch renews 2
 * and 3. A node may leave an event out, once: a claim that lowers the cursor reads it a second time. What is atomic here is one statement or transaction
 * there, or one step of the publisher:
 *
 *   commit     ledger.CommitSlots         a block; its event is of the log, or apart with an outbox row; the answer comes later, or never does
 *   offer      publish.Publisher.Offer    the answer to the commit
 *   reload     Publisher.Reload           the position, its epoch and generation have changed; nothing is dropped: what a rollback has removed has a row too
 *   sent, page outbox                     the place sent, and what is stored of the log behind it; neither under an epoch or generation that is over
 *   send, end  Publisher                  a request of an escrow; it is acknowledged or refused
 *   settle     outbox                     computed from what was read or offered without a gap (last), below the cursor up to which all of that is known
 *                                         (end); written at any time after that, also when its process is dead
 *   row        Publisher                  a row of the outbox is read, published, deleted (order.pml has these steps one by one)
 *   kill, cut  the process is gone; its session is gone, and it goes on as a zombie
 *   claim, release                        partition.Claimer; at a release the publisher comes to rest first
 *   rollback   ledger.Rollback
 *   retract    ledger.retract             of what a rollback has removed, behind its row
 *
 * Checked: what is of the log and not beyond sent was published; each escrow's events are published first in the order of the chain, but for what a node
 * had left out; a message is repeated only after a kill, a cut or a rollback; nothing is retracted that was not published, nor published by its owner
 * after that; and when nothing is left to do, each stored event was published.
 *
 * The negative checks take one rule out: NO_EPOCH, NO_GENERATION (what fences a settlement), NO_FRESH (it waits for sent after a reload), NO_END (it
 * stops below end), NO_RIGHT (sent and pages are fenced too), NO_BEHIND (what is stored behind sent gets a row), NO_ROWS and NO_LOWER (of a rollback),
 * NO_HASH (a place of the other branch is another event), NO_MARK (what is acknowledged beyond sent, at a release), NO_LIMIT (an offer that is not taken
 * ends what a page tells), NO_ALL (pages go on beyond a cursor that was lowered), NO_RAISE (a page behind a gap does not raise end).
 */
#ifndef KILLS
#define KILLS 0         /* instances killed or cut off */
#endif
#ifndef RELEASES
#define RELEASES 0
#endif
#ifndef OMITS
#define OMITS 0         /* events that a node leaves out */
#endif
#ifndef FLIPS
#define FLIPS 0
#endif
#ifndef DEAF
#define DEAF 0          /* answers to commits that are lost */
#endif
#ifndef REFUSED
#define REFUSED 0       /* requests that Pub/Sub refuses */
#endif
#ifndef PAGE
#define PAGE 4          /* rows of a page */
#endif
#define TOP 3
#define FREE 9
#define AT(x) ((x) > 3 -> (x) - 2 : (x))                /* contents: 1, 2, 3, and on the new branch 1, 4, 5 */
#define CONTENT(p) ((p) > 1 && branch -> (p) + 2 : (p))
#define BIT(x) (1 << (x))

/* the chain */
bit branch;
/* the database */
byte owner[2]; byte epoch[2]; byte cur[2] = 1; byte left[2]; byte gen;
bool alive[2];
byte ev[4];             /* by place: the content; 0: not stored */
bool apart[4];
byte sent;
byte rows;              /* outbox: a bit per content */
byte orphans;           /* told, removed, and not retracted */
/* the settlements under way, by instance: 0, or the place and what fences it */
byte settling[2]; byte settleEpoch[2]; byte settleGen[2];
/* the truth: contents that Pub/Sub has, that it has a retraction of; places that a node has left out */
byte published, retracted, missed;
bool excused;           /* messages may be repeated */
byte kills = KILLS; byte releases = RELEASES; byte omits = OMITS; byte flips = FLIPS; byte deaf = DEAF; byte refused = REFUSED;
hidden byte i, x;

#define COVERED(p) (!(ev[p] != 0 && !apart[p] && (p) <= sent) || (published & BIT(ev[p])))
#define SOUND assert(COVERED(1) && COVERED(2) && COVERED(3))

inline publish(what) {
	assert(!(published & BIT(what)) || excused);
	assert(!(retracted & BIT(what)) || !alive[me] || pe != epoch[me]);
	assert(AT(what) != 3 || (published & BIT(1)) || (missed & BIT(1)));
	published = published | BIT(what)
}

/* contents at one place, and what the publisher knows of them */
#define PLACE(p) ((p) == 1 -> BIT(1) : ((p) == 2 -> BIT(2) | BIT(4) : BIT(3) | BIT(5)))
#define X_KEY (BIT(1) | BIT(3) | BIT(5))
#ifndef NO_HASH
#define KNOWN(x) ((queue | acked | fly) & BIT(x))
#else
#define KNOWN(x) ((queue | acked | fly) & PLACE(AT(x)))
#endif
#define LEAST(a, b) ((a) < (b) -> (a) : (b))

/* the place up to which all is acknowledged, of what is committed and known: the new branch's event takes the place of the other */
#define ENTRY(p) ((p) > 1 && KNOWN((p) + 2) -> BIT((p) + 2) : PLACE(p))
#define OPEN(p) ((p) > floor && ((queue | fly) & ENTRY(p)))
#define ACKED (OPEN(1) -> 0 : (OPEN(2) -> 1 : (OPEN(3) -> 2 : TOP)))
#ifndef NO_END
#define UPTO LEAST(ACKED, LEAST(last, end - 1))
#else
#define UPTO LEAST(ACKED, last)
#endif
#ifndef NO_FRESH
#define SETTLES (on && fresh && settling[me] == 0 && UPTO > floor)
#else
#define SETTLES (on && settling[me] == 0 && end > 0 && UPTO > floor)
#endif

/* what fences a settlement */
#ifndef NO_EPOCH
#define INEPOCH(e) (epoch[me] == (e))
#else
#define INEPOCH(e) true
#endif
#ifndef NO_GENERATION
#define INGENERATION(g) (gen == (g))
#else
#define INGENERATION(g) true
#endif

#ifndef NO_RIGHT
#define RIGHT (epoch[me] == pe && gen == pg)
#else
#define RIGHT true
#endif

/* a page reads all that is stored, also beyond a cursor that was lowered; a full one ends at its last row */
#ifndef NO_ALL
#define READS(p) ((p) <= TOP)
#else
#define READS(p) ((p) < cur[me])
#endif

/* sent was read, or written: what it covers is forgotten */
inline covers(p) {
	floor = p;
	i = 1;
	do
	:: i <= floor -> acked = acked & ~PLACE(i); i++
	:: else -> break
	od;
	i = 0
}

inline unpage() { paging = false; more = false; limit = 0; pageFrom = 0; pageTo = 0; pageCur = 0; page = 0 }
inline stop() { on = false; fresh = false; quiet = 0; caught = false; pe = 0; pg = 0; floor = 0; last = 0; end = 0; queue = 0; acked = 0; unpage() }
inline unserve() { serving = false; offer = false; offered = 0 }
inline forget() { unserve(); c = 0; g = 0; stop(); fly = 0 }

#define DEAD(s) (owner[s] == FREE || owner[s] == 1 - me && !alive[1 - me])
#define LOWER(s) (owner[s] == FREE -> left[s] : cur[1 - me])

proctype Instance(byte me) {
	byte held;
	/* the watch: its position, and the answer to its last commit */
	bool serving, offer; byte c, g, offered;
	/* the publisher: what it knows (bits of contents), floor (sent as it was read or written), last (read or offered up to here), end (all below is known) */
	bool on, fresh, caught; byte quiet, pe, pg, floor, last, end, queue, acked, fly;
	/* a page under way: its snapshot, and what an offer that was not taken leaves of it */
	bool paging, more; byte limit, pageFrom, pageTo, pageCur, page;
	byte low;

	held = 1;
	do
	:: atomic { !alive[me] -> alive[me] = true; epoch[me]++; held = epoch[me]; forget() }
	:: atomic { kills > 0 && alive[me] -> kills--; alive[me] = false; excused = true; forget() }
	:: atomic { kills > 0 && alive[me] -> kills--; alive[me] = false; excused = true }

	/* claim: what is free, and what the dead have */
	:: atomic { alive[me] && held == epoch[me] && (DEAD(0) || DEAD(1)) && quiet == 0 ->
		low = TOP + 1;
		if :: owner[0] == me || owner[1] == me -> low = cur[me] :: else -> skip fi;
		if :: DEAD(0) && LOWER(0) < low -> low = LOWER(0) :: else -> skip fi;
		if :: DEAD(1) && LOWER(1) < low -> low = LOWER(1) :: else -> skip fi;
		if :: owner[0] == 1 - me || owner[1] == 1 - me -> if :: !alive[1 - me] -> epoch[1 - me]++ :: else -> skip fi :: else -> skip fi;
		if :: DEAD(0) -> owner[0] = me; left[0] = 0 :: else -> skip fi;
		if :: DEAD(1) -> owner[1] = me; left[1] = 0 :: else -> skip fi;
		epoch[me]++; held = epoch[me]; cur[me] = low; low = 0; unserve()
	   }
	/* release: of slot 0 at once; of slot 1 when it is at rest: what it has acknowledged is settled, or marked, which is right under any right */
	:: atomic { releases > 0 && alive[me] && held == epoch[me] && owner[0] == me && quiet == 0 ->
		releases--; owner[0] = FREE; left[0] = cur[me]; epoch[me]++; held = epoch[me]; unserve()
	   }
	:: atomic { releases > 0 && alive[me] && held == epoch[me] && on && quiet == 0 -> releases--; quiet = 1; unpage() }
	:: atomic { quiet == 1 && fly == 0 && settling[me] == 0 ->
		if
		:: fresh && INEPOCH(pe) && INGENERATION(pg) && UPTO > sent -> sent = UPTO
		:: else -> skip
		fi;
#ifndef NO_MARK
		i = 1;
		do
		:: i <= TOP -> if :: acked & BIT(ev[i]) -> apart[i] = true :: else -> skip fi; i++
		:: else -> break
		od;
		i = 0;
#endif
		SOUND;
		quiet = 2
	   }
	:: atomic { quiet == 2 ->
		if
		:: epoch[me] == held && owner[1] == me -> owner[1] = FREE; left[1] = cur[me]; epoch[me]++; held = epoch[me]; unserve(); stop()
		:: else -> quiet = 0; fresh = false; caught = false
		fi
	   }

	/* serve: the position is read, and the publisher hears of it */
	:: atomic { (!serving || g != gen) && held == epoch[me] && (owner[0] == me || owner[1] == me) ->
		unserve(); serving = true; c = cur[me]; g = gen;
		if
		:: owner[1] == me ->
			on = true; pe = held; pg = gen; fresh = false; caught = false; unpage()
		:: else -> stop()
		fi
	   }
	/* sent is read again */
	:: atomic { on && !fresh && RIGHT -> fresh = true; covers(sent); last = floor; end = floor + 1 }

	/* commit the next block */
	:: atomic { serving && !offer && c <= TOP ->
		if
		:: epoch[me] == held && gen == g && cur[me] == c ->
			offer = true;
			if
			:: owner[1] != me || ev[c] != 0 -> skip
			:: owner[1] == me && ev[c] == 0 && omits > 0 -> omits--; missed = missed | BIT(c)
			:: owner[1] == me && ev[c] == 0 ->
				ev[c] = CONTENT(c);
				if
#ifndef NO_BEHIND
				:: c <= sent -> apart[c] = true; rows = rows | BIT(ev[c]); assert(missed & BIT(c))
#endif
				:: else -> offered = ev[c]
				fi
			fi;
			cur[me] = c + 1; c++;
			SOUND;
			if :: deaf > 0 -> deaf--; unserve() :: true -> skip fi
		:: else -> unserve()
		fi
	   }
	/* its answer comes */
	:: atomic { serving && offer ->
		if
		:: !on || quiet != 0 -> skip
		:: on && quiet == 0 && fresh && caught ->
			assert(c - 1 <= end);
			if :: c > end -> end = c :: else -> skip fi;
			if :: last < c - 1 -> last = c - 1 :: else -> skip fi;
			if :: offered > floor && !KNOWN(offered) -> queue = queue | BIT(offered) :: else -> skip fi
		:: else ->
			/* left to the pages; of one that is under way counts what is before it */
			caught = false; last = LEAST(last, c - 2);
#ifndef NO_LIMIT
			limit = LEAST(limit, c - 1)
#endif
		fi;
		offer = false; offered = 0
	   }

	/* a page, in two steps */
	:: atomic { on && quiet == 0 && fresh && !caught && !paging && RIGHT ->
		paging = true; more = false; limit = FREE; pageFrom = last; pageTo = last; pageCur = cur[me];
		i = last + 1; x = 0;
		do
		:: READS(i) && x < PAGE -> if :: ev[i] != 0 && !apart[i] -> page = page | BIT(ev[i]); pageTo = i; x++ :: else -> skip fi; i++
		:: else -> break
		od;
		more = (x == PAGE); i = 0; x = 0
	   }
	:: atomic { paging ->
		i = 1;
		do
		:: i < 6 -> if :: (page & BIT(i)) && AT(i) > floor && !KNOWN(i) -> queue = queue | BIT(i) :: else -> skip fi; i++
		:: else -> break
		od;
		i = 0;
#ifndef NO_RAISE
		if :: pageFrom < end && pageCur > end -> end = LEAST(pageCur, limit) :: else -> skip fi;
#else
		if :: pageCur > end -> end = LEAST(pageCur, limit) :: else -> skip fi;
#endif
		if :: !more && pageTo < end - 1 -> pageTo = end - 1 :: else -> skip fi;
		if :: limit <= TOP -> last = LEAST(pageTo, limit - 1) :: else -> last = pageTo; caught = !more fi;
		unpage()
	   }

	/* send, and its end */
	:: atomic { on && quiet == 0 && (queue & X_KEY) && !(fly & X_KEY) ->
		if :: queue & BIT(1) -> x = 1 :: !(queue & BIT(1)) && (queue & BIT(3)) -> x = 3 :: else -> x = 5 fi;
		queue = queue & ~BIT(x); fly = fly | BIT(x); x = 0
	   }
	:: atomic { on && quiet == 0 && (queue & ~X_KEY) && !(fly & ~X_KEY) ->
		if :: queue & BIT(2) -> x = 2 :: else -> x = 4 fi;
		queue = queue & ~BIT(x); fly = fly | BIT(x); x = 0
	   }
	:: atomic { fly != 0 ->
		if
		:: fly & BIT(1) -> x = 1
		:: fly & BIT(2) -> x = 2
		:: fly & BIT(3) -> x = 3
		:: fly & BIT(4) -> x = 4
		:: fly & BIT(5) -> x = 5
		fi;
		fly = fly & ~BIT(x);
		if
		:: true -> publish(x); if :: on && AT(x) > floor -> acked = acked | BIT(x) :: else -> skip fi
		:: refused > 0 -> refused--; if :: on -> queue = queue | BIT(x) :: else -> skip fi
		fi;
		x = 0
	   }

	/* settle */
	:: atomic { SETTLES && quiet == 0 -> settling[me] = UPTO; settleEpoch[me] = pe; settleGen[me] = pg }
	:: atomic { settling[me] != 0 ->
		if
		:: owner[1] == me && INEPOCH(settleEpoch[me]) && INGENERATION(settleGen[me]) ->
			if :: settling[me] > sent -> sent = settling[me] :: else -> skip fi;
			if :: on && pe == settleEpoch[me] && pg == settleGen[me] && settling[me] > floor -> covers(settling[me]) :: else -> skip fi;
			SOUND
		:: else -> skip
		fi;
		settling[me] = 0; settleEpoch[me] = 0; settleGen[me] = 0
	   }

	/* a row of the outbox, while the log is caught up, and no request of its escrow is under way */
	:: atomic { on && quiet == 0 && caught && rows != 0 && pe == epoch[me] && pg == gen && cur[me] <= end && queue == 0 && fly == 0 ->
		if
		:: rows & BIT(1) -> x = 1
		:: rows & BIT(2) -> x = 2
		:: rows & BIT(3) -> x = 3
		:: rows & BIT(4) -> x = 4
		:: rows & BIT(5) -> x = 5
		fi;
		publish(x); rows = rows & ~BIT(x); x = 0
	   }
	/* the retraction of what was removed, behind its row */
	:: atomic { serving && owner[1] == me && epoch[me] == held && gen == g && (orphans & ~rows) != 0 ->
		x = orphans & ~rows;
		assert((published & x) == x);
		retracted = retracted | x; orphans = orphans & ~x; x = 0
	   }
	od
}

proctype Chain() {
	do
	:: atomic { flips > 0 && (ev[2] != 0 || ev[3] != 0) ->
		flips--; branch = 1; gen++; excused = true;
		i = 2;
		do
		:: i <= TOP ->
			if
			:: ev[i] != 0 ->
				orphans = orphans | BIT(ev[i]);
#ifndef NO_ROWS
				if :: !apart[i] && i > sent -> rows = rows | BIT(ev[i]) :: else -> skip fi;
#endif
				ev[i] = 0; apart[i] = false
			:: else -> skip
			fi;
			i++
		:: else -> break
		od;
		i = 0;
		if :: cur[0] > 2 -> cur[0] = 2 :: else -> skip fi;
		if :: cur[1] > 2 -> cur[1] = 2 :: else -> skip fi;
		if :: left[0] > 2 -> left[0] = 2 :: else -> skip fi;
		if :: left[1] > 2 -> left[1] = 2 :: else -> skip fi;
#ifndef NO_LOWER
		if :: sent > 1 -> sent = 1 :: else -> skip fi
#endif
	   }
	od
}

#define TOLD(p) (ev[p] == 0 || (published & BIT(ev[p])))

init {
	atomic {
		owner[0] = 0; owner[1] = 1; epoch[0] = 1; epoch[1] = 1; alive[0] = true; alive[1] = true;
		run Instance(0); run Instance(1); run Chain()
	};
	timeout -> atomic { assert(TOLD(1) && TOLD(2) && TOLD(3)); assert(rows == 0 && orphans == 0); assert(cur[owner[1]] == TOP + 1 && (missed || ev[3] != 0)) }
}
