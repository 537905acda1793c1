/*
 * The order of one escrow's messages: those of the log, behind the place sent, and those with a row in the outbox. Checked with Spin by check.sh.
 *
 * The chain has an event of the escrow in each of three blocks, so block and place are one; a branch may renew the last, or the last two. Its slot has
 * one owner; log.pml is about slots that change hands. What is atomic here is one statement or transaction there, or one step of the publisher:
 *
 *   commit     ledger.CommitSlots         what is requested gets a row; the next block's event is of the log, or apart with a row, or has come back
 *   late       the same under a cursor that does not move: what the escrow, found late, emitted before it
 *   asks       ledger.Replay              a request for event 1; without the rule REQUESTS a row, visible when that writer likes
 *   rollback   ledger.Rollback            what was told of and is not covered by sent gets a row ahead of all others
 *   crash      Postgres                   the newest commits that it had answered are forgotten, with their numbers and sent (synchronous_commit = off)
 *   serve      relayer.tenure             the position, and its generation or the memory, have changed; all is read again from sent, nothing is dropped
 *   offer      publish.Publisher.Offer    what commits were answered with; an answer may be lost (DEAF)
 *   pages      outbox                     of the log and of the rows, each with the cursor and generation of its snapshot; they are taken later
 *   send       publish.Publisher          the oldest of the log that is known; if there is none, the row with the lowest number
 *   move       outbox                     an escrow that fails: its events of the log get rows ahead. Until it is answered nothing is sent, and nothing
 *                                         taken of the log; the answer drops what of it waits. If the answer is lost it is done once more
 *   settle     outbox                     sent is raised to what is acknowledged below end: all that the commits before have stored is known
 *   delete     outbox                     rows that were acknowledged, by number and token
 *
 * Checked: first publications are in the order of the chain, and nothing of the old branch comes after something of the new one; a message is repeated
 * only after a crash, on request, or if a rollback found it beyond sent; no row goes that was not acknowledged; when nothing is left to do, each event
 * was published and no row is left.
 *
 * The negative checks take one rule out. Of commits: NO_APART (an event behind rows gets one), NO_LOOK (they are looked for under the lock), NO_REQUESTS
 * (rows are written by the owner only), NO_AHEAD and NO_REVIVED (of a rollback). Of readings: NO_LOGFIRST, NO_CURSOR (the rows' snapshot is not
 * beyond end), NO_SNAPSHOT (nor of another generation), NO_PASS and NO_MISSING (an offer of rows during a pass). Of moves: NO_LOCK, NO_LEAVE (what is
 * acknowledged gets no row), NO_CLOSED, NO_OLD (an offer below end brings nothing), NO_REST (the log rests), NO_REPEAT. Of a database that forgets:
 * NO_TOKEN, NO_MEMORY (a new publisher), NO_TENURE (and no settlement of the old one).
 */
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef ASKS
#define ASKS 0
#endif
#ifndef FLIPS
#define FLIPS 0
#endif
#ifndef MOVES
#define MOVES 0
#endif
#ifndef DEAF
#define DEAF 0
#endif
#ifndef LATE
#define LATE 0
#endif
#define TOP 3
#define AHEAD 5                 /* numbers 5 to 1: rows ahead; from 6 on: the others */
#define ROWS 14
#define BIT(x) (1 << (x))
#define AT(x) ((x) > 3 -> (x) - 2 : (x))
#define CONTENT(p) ((p) == 2 -> second : ((p) == 3 -> third : 1))
#define LEAST(a, b) ((a) < (b) -> (a) : (b))

/* the chain: contents 1, 2, 3; on a branch 1, 2, 5 or 1, 4, 5 */
byte second = 2; byte third = 3;
/* the database */
byte ev[4]; bool apart[4]; byte sent; byte cursor = 1; byte gen;
byte row[ROWS]; byte token[ROWS]; byte ahead = AHEAD + 1; byte seq = AHEAD;     /* the row with a number: its content, 0 for none; the last numbers */
bool requested; bool late = LATE;
byte removed;                   /* contents that a rollback has removed */
byte memory;                    /* its name */
#if CRASHES > 0
/* what a crash goes back to: a state that is flushed */
byte ev0[4]; bool apart0[4]; byte sent0; byte cursor0 = 1; byte row0[ROWS]; byte token0[ROWS]; byte seq0 = AHEAD; bool requested0;
#endif

/* the watch: its position; answers that the publisher has not seen: from, to, contents of the log, numbers of rows */
bool serving; byte c, g, joined;
bool offer; byte from, to, news; short fresh;
/* the publisher */
byte queue, acked;              /* of the log: contents that it has not sent; that are acknowledged and not covered by floor */
byte floor, end, pg;            /* sent; all below end is known; the generation */
bool caught;                    /* up with the log */
byte moving, moveGen;           /* 1: the statement is under way; 2: its answer; with what it is fenced */
bool logPage; byte page, pageCur, pageGen;
byte known[ROWS]; byte knownToken[ROWS]; byte ackedToken[ROWS];
byte readTo; bool rowsCaught;
bool rowPage, missing; short rowsRead; byte rowsCur, rowsGen;
byte settling, settleGen, settleMemory;
byte tokens;                    /* drawn so far: each is used once */
/* the truth about Pub/Sub */
byte published; byte again;     /* what may be repeated */
byte crashes = CRASHES; byte asks = ASKS; byte flips = FLIPS; byte moves = MOVES; byte deaf = DEAF;
hidden byte i, x; hidden short r;
bool looked, sees; byte moveSet;        /* only without the rules LOOK and LOCK */

#define ANY(a) (a[1] || a[2] || a[3] || a[4] || a[5] || a[6] || a[7] || a[8] || a[9] || a[10] || a[11] || a[12] || a[13])

inline publish(what) {
	if
	:: published & BIT(what) -> assert(again & BIT(what))
	:: else ->
		assert(AT(what) != 2 || (published & BIT(1)));
		assert(what != 3 || (published & BIT(2)));
		assert(what != 5 || (published & BIT(second)));
		published = published | BIT(what)
	fi;
	assert(what == CONTENT(AT(what)) || !(published & (BIT(4) | BIT(5))))
}

/* a row: number n */
inline write(n, what) {
	assert(n > 0 && n < ROWS);
	row[n] = what;
#if CRASHES > 0
	token[n] = tokens
#else
	token[n] = 1
#endif
}
inline append(what) { seq++; write(seq, what); r = r | BIT(seq) }
/* ahead of all rows */
inline prepend(what) {
#ifndef NO_AHEAD
	ahead--; write(ahead, what)
#else
	seq++; write(seq, what)
#endif
}

inline covers(p) {
	floor = p;
	if :: p >= 1 -> acked = acked & ~BIT(1) :: else -> skip fi;
	if :: p >= 2 -> acked = acked & ~(BIT(2) | BIT(4)) :: else -> skip fi;
	if :: p >= 3 -> acked = 0 :: else -> skip fi
}

inline unlog() { logPage = false; page = 0; pageCur = 0; pageGen = 0 }
inline unrow() { rowPage = false; missing = false; rowsRead = 0; rowsCur = 0; rowsGen = 0 }
inline dropRows() {
	i = 0;
	do
	:: i < ROWS -> known[i] = 0; knownToken[i] = 0; i++
	:: else -> break
	od;
	i = 0
}
inline rereadRows() { readTo = 0; rowsCaught = false; unrow() }

/* the commit is answered, or its answer is lost */
inline answer(f, what) {
	if
	:: deaf > 0 -> deaf--; serving = false
	:: true ->
		if :: !offer -> from = f :: else -> skip fi;
		offer = true; to = c; news = news | what; fresh = fresh | r
	fi;
	r = 0; x = 0
}

#define OPEN(p) ((p) == 1 -> queue & BIT(1) : ((p) == 2 -> queue & (BIT(2) | BIT(4)) : queue & (BIT(3) | BIT(5))))
#define UPTO LEAST(end - 1, (OPEN(1) -> 0 : (OPEN(2) -> 1 : (OPEN(3) -> 2 : TOP))))

proctype Watch() {
	do
	/* what was known of another memory is void */
	:: atomic { joined != memory ->
		joined = memory; serving = false; offer = false; from = 0; to = 0; news = 0; fresh = 0;
#ifndef NO_MEMORY
		queue = 0; acked = 0; floor = 0; end = 0; caught = false; moving = 0; moveGen = 0; moveSet = 0; dropRows(); rereadRows(); unlog()
#endif
	   }
	:: atomic { joined == memory && (!serving || g != gen) && !offer ->
		serving = true; c = cursor; g = gen; looked = false; sees = false;
		rereadRows();
		pg = gen; caught = false; unlog(); covers(sent); end = floor + 1
	   }
#ifdef NO_LOOK
	:: atomic { serving && joined == memory && !looked -> looked = true; sees = ANY(row) }
#endif
	/* commit the next block, and what is requested */
#ifdef NO_LOOK
	:: atomic { serving && joined == memory && looked && (c <= TOP || requested) ->
#else
	:: atomic { serving && joined == memory && (c <= TOP || requested) ->
#endif
		if
		:: gen != g || cursor != c -> serving = false
		:: else ->
			tokens++;
			if :: requested -> requested = false; append(ev[1]); again = again | BIT(1) :: else -> skip fi;
#ifndef NO_LOOK
			sees = ANY(row);
#endif
			if
			:: c <= TOP && !late && ev[c] == 0 ->
				x = CONTENT(c); ev[c] = x;
				if
#ifndef NO_REVIVED
				:: removed & BIT(x) -> apart[c] = true; removed = removed & ~BIT(x); x = 0
#endif
				:: else ->
					if
#ifndef NO_APART
					:: sees || c <= sent -> apart[c] = true; append(x); x = 0
#else
					:: c <= sent -> apart[c] = true; append(x); x = 0
#endif
					:: else -> x = BIT(x)
					fi
				fi
			:: else -> x = 0
			fi;
			i = c;
			if :: c <= TOP -> c++; cursor = c :: else -> skip fi;
			answer(i, x)
		fi;
		i = 0; looked = false; sees = false
	   }
	:: atomic { serving && joined == memory && late && c > 1 ->
		if
		:: gen != g || cursor != c -> serving = false
		:: else ->
			late = false; tokens++;
			i = 1;
			do
			:: i < c -> if :: ev[i] == 0 -> ev[i] = CONTENT(i); apart[i] = true; append(ev[i]) :: else -> skip fi; i++
			:: else -> break
			od;
			i = 0;
			answer(c, 0)
		fi
	   }
	od
}

#ifndef NO_LOGFIRST
#define ROWSGO caught
#else
#define ROWSGO true
#endif
#ifndef NO_REST
#define LOGGOES (moving == 0)
#else
#define LOGGOES true
#endif
#ifndef NO_CURSOR
#define UPTODATE (rowsCur <= end)
#else
#define UPTODATE true
#endif
#ifndef NO_SNAPSHOT
#define INGENERATION(g) ((g) == pg)
#else
#define INGENERATION(g) true
#endif

proctype Publisher() {
	do
	/* what was offered */
	:: atomic { offer ->
		if
		:: caught && from <= end ->
			/* below end all is known, or was moved */
			i = 1;
			do
#ifndef NO_OLD
			:: i < 6 -> if :: (news & BIT(i)) && AT(i) >= end -> queue = queue | BIT(i) :: else -> skip fi; i++
#else
			:: i < 6 -> if :: (news & BIT(i)) && AT(i) > floor && !((queue | acked) & BIT(i)) -> queue = queue | BIT(i) :: else -> skip fi; i++
#endif
			:: else -> break
			od;
			if :: to > end -> end = to :: else -> skip fi
		:: else -> caught = false; unlog()
		fi;
		if
		:: fresh == 0 -> skip
#ifndef NO_PASS
		:: fresh != 0 && rowsCaught && ROWSGO ->
#else
		:: fresh != 0 && ROWSGO ->
#endif
			i = 1;
			do
			:: i < ROWS -> if :: (fresh & BIT(i)) && i > readTo -> known[i] = row[i]; knownToken[i] = token[i]; readTo = i :: else -> skip fi; i++
			:: else -> break
			od
		:: else ->
			rowsCaught = false;
#ifndef NO_MISSING
			missing = rowPage
#endif
		fi;
		i = 0; offer = false; from = 0; to = 0; news = 0; fresh = 0
	   }

	/* a page of the log, in two steps; an offer that is not taken makes it void; none is read while a move is under way */
	:: atomic { joined == memory && end > 0 && LOGGOES && !caught && !logPage ->
		logPage = true; pageCur = cursor; pageGen = gen;
		i = 1;
		do
		:: i <= TOP -> if :: i > sent && ev[i] != 0 && !apart[i] -> page = page | BIT(ev[i]) :: else -> skip fi; i++
		:: else -> break
		od;
		i = 0
	   }
	:: atomic { logPage ->
		if
		:: INGENERATION(pageGen) ->
			i = 1;
			do
			:: i < 6 -> if :: (page & BIT(i)) && AT(i) > floor && !((queue | acked) & BIT(i)) -> queue = queue | BIT(i) :: else -> skip fi; i++
			:: else -> break
			od;
			i = 0; caught = true;
			if :: pageCur > end -> end = pageCur :: else -> skip fi
		:: else -> skip
		fi;
		unlog()
	   }

	/* a page of the outbox, in two steps */
	:: atomic { joined == memory && end > 0 && ROWSGO && !rowsCaught && !rowPage ->
		rowPage = true; rowsCur = cursor; rowsGen = gen;
		i = readTo + 1;
		do
		:: i < ROWS -> if :: row[i] != 0 -> rowsRead = rowsRead | BIT(i) :: else -> skip fi; i++
		:: else -> break
		od;
		i = 0
	   }
	:: atomic { rowPage ->
		if
		:: ROWSGO && INGENERATION(rowsGen) && UPTODATE ->
			i = 1;
			do
			:: i < ROWS ->
				if
				:: rowsRead & BIT(i) ->
					readTo = i;
					if :: ackedToken[i] != token[i] || ackedToken[i] == 0 -> known[i] = row[i]; knownToken[i] = token[i] :: else -> skip fi
				:: else -> skip
				fi;
				i++
			:: else -> break
			od;
			rowsCaught = !missing
		:: else -> skip
		fi;
		i = 0; unrow()
	   }

	/* send: Pub/Sub has it, and says so */
	:: atomic { moving == 0 && queue != 0 ->
		i = 1;
		do
		:: !(queue & BIT(i)) -> i++
		:: else -> break
		od;
		publish(i); queue = queue & ~BIT(i);
		if :: AT(i) > floor -> acked = acked | BIT(i) :: else -> skip fi;
		i = 0
	   }
	:: atomic { moving == 0 && queue == 0 && ANY(known) ->
		i = 1;
		do
		:: known[i] == 0 -> i++
		:: else -> break
		od;
		publish(known[i]); ackedToken[i] = knownToken[i]; known[i] = 0; knownToken[i] = 0;
		i = 0
	   }

	/* a row that is acknowledged goes; a page that has read it before does not bring it back */
	:: atomic { ANY(ackedToken) ->
		i = 1;
		do
		:: ackedToken[i] == 0 -> i++
		:: else -> break
		od;
#ifndef NO_TOKEN
		if :: token[i] == ackedToken[i] ->
#else
		if :: true ->
#endif
			assert(row[i] == 0 || token[i] == ackedToken[i]);
			row[i] = 0; token[i] = 0; rowsRead = rowsRead & ~BIT(i)
		:: else -> skip
		fi;
		ackedToken[i] = 0; i = 0
	   }

	/* move */
	:: atomic { moves > 0 && moving == 0 && queue != 0 -> moves--; moving = 1; moveGen = pg;
#ifndef NO_REST
		caught = false; unlog();
#endif
#ifdef NO_LOCK
		i = 1;
		do
		:: i <= TOP -> if :: ev[i] != 0 && !apart[i] && i > sent && !(acked & BIT(ev[i])) -> moveSet = moveSet | BIT(i) :: else -> skip fi; i++
		:: else -> break
		od;
		i = 0
#endif
	   }
	:: atomic { moving == 1 && joined == memory ->
		if
		:: gen != moveGen -> moving = 0; moveGen = 0; moveSet = 0; again = again | queue        /* the position comes; an answer may have been lost */
		:: else ->
			tokens++;
			i = TOP;
			do
			:: i > 0 ->
				if
#ifdef NO_LOCK
				:: (moveSet & BIT(i)) && !apart[i] -> apart[i] = true; prepend(ev[i])
#else
#ifndef NO_LEAVE
				:: ev[i] != 0 && !apart[i] && i > sent && !(acked & BIT(ev[i])) -> apart[i] = true; prepend(ev[i])
#else
				:: ev[i] != 0 && !apart[i] && i > sent -> apart[i] = true; prepend(ev[i])
#endif
#endif
				:: else -> skip
				fi;
				i--
			:: else -> break
			od;
			moveSet = 0;
			if
			:: moving = 2
			:: moves > 0 -> moves--;        /* no answer: once more */
#ifdef NO_REPEAT
				moving = 0; moveGen = 0
#endif
			fi
		fi
	   }
	:: atomic { moving == 2 ->
		moving = 0; moveGen = 0; queue = 0; rereadRows();
#ifndef NO_CLOSED
		dropRows()      /* what was offered since is behind the rows ahead */
#endif
	   }

	/* settle */
	:: atomic { settling == 0 && end > 0 && UPTO > floor && joined == memory -> settling = UPTO; settleGen = pg; settleMemory = memory }
	:: atomic { settling != 0 ->
		if
#ifndef NO_TENURE
		:: gen == settleGen && memory == settleMemory ->
#else
		:: gen == settleGen ->
#endif
			if :: settling > sent -> sent = settling :: else -> skip fi;
			if :: settleGen == pg && settling > floor -> covers(settling) :: else -> skip fi
		:: else -> skip
		fi;
		settling = 0; settleGen = 0; settleMemory = 0
	   }
	od
}

/* a replay: its transaction ends whenever it likes */
proctype Asks() {
	byte drawn, life;
	do
#ifndef NO_REQUESTS
	:: atomic { asks > 0 && ev[1] != 0 -> asks--; requested = true }
#else
	:: atomic { asks > 0 && ev[1] != 0 && drawn == 0 -> asks--; seq++; drawn = seq; life = memory }
	:: atomic { drawn != 0 ->
		if :: life == memory -> tokens++; write(drawn, 1); again = again | BIT(1) :: else -> skip fi;
		drawn = 0; life = 0
	   }
#endif
	od
}

proctype Chain() {
	do
	:: atomic { flips > 0 && (ev[2] != 0 || ev[3] != 0) ->
		flips--; gen++;
		if :: third = 5 :: second = 4; third = 5 :: true -> skip fi;
		tokens++;
		i = TOP;
		do
		:: i > 1 ->
			if
			:: ev[i] != 0 ->
				removed = removed | BIT(ev[i]);
				if :: !apart[i] && i > sent -> again = again | BIT(ev[i]); prepend(ev[i]) :: else -> skip fi
			:: else -> skip
			fi;
			ev[i] = 0; apart[i] = false; i--
		:: else -> break
		od;
		i = 0; cursor = LEAST(cursor, 2); sent = LEAST(sent, 1)
	   }
	od
}

#if CRASHES > 0
proctype Server() {
	do
	:: atomic { crashes > 0 ->
		i = 0;
		do
		:: i < ROWS -> row0[i] = row[i]; token0[i] = token[i]; i++
		:: else -> break
		od;
		i = 0;
		do
		:: i <= TOP -> ev0[i] = ev[i]; apart0[i] = apart[i]; i++
		:: else -> break
		od;
		i = 0; sent0 = sent; cursor0 = cursor; seq0 = seq; requested0 = requested
	   }
	:: atomic { crashes > 0 ->
		crashes--; memory++; again = 255;
		i = 0;
		do
		:: i < ROWS -> row[i] = row0[i]; row0[i] = 0; token[i] = token0[i]; token0[i] = 0; i++
		:: else -> break
		od;
		i = 0;
		do
		:: i <= TOP -> ev[i] = ev0[i]; ev0[i] = 0; apart[i] = apart0[i]; apart0[i] = false; i++
		:: else -> break
		od;
		i = 0; sent = sent0; cursor = cursor0; seq = seq0; requested = requested0;
		sent0 = 0; cursor0 = 0; seq0 = 0; requested0 = false
	   }
	od
}
#endif

init {
	atomic {
		run Watch(); run Publisher();
#if ASKS > 0
		run Asks();
#endif
#if FLIPS > 0
		run Chain();
#endif
#if CRASHES > 0
		run Server();
#endif
#if LATE > 0
		cursor = 2
#endif
	};
	timeout -> atomic {
		assert((published & BIT(1)) && (published & BIT(second)) && (published & BIT(third)));
		assert(!ANY(row)); assert(!requested && !late && cursor == TOP + 1)
	}
}
