/*
 * The order of one slot's rows in the outbox, and what a database that forgets makes of their numbers. Checked with Spin by check.sh.
 *
 * One escrow; its events 1, 2, 3 come from the chain in that order. The owner of the slot commits them, each with its row; a commit draws the row's
 * number before it ends, and numbers are not given back. Another writer, the verifier or a replay, wants an event published once more. The
 * server may crash: it forgets the newest commits that it had answered (synchronous_commit = off), their numbers with them, and its memory gets another name.
 *
 *   begin, end   ledger.CommitSlots      the numbers are drawn; the rows are visible
 *   asks         ledger.Replay, Repair   a transaction of its own, that ends at any time: a request, or without the rule REQUESTS a row
 *   crash        Postgres                what was answered last is forgotten; transactions under way end
 *   rejoin       relayer.tenure          the owner finds another memory: what it knows of rows is void, and it reads on from its cursor
 *   read         outbox.Box.Read         rows behind the last that was read
 *   send         publish.Publisher       Pub/Sub has the oldest row that is known, and says so
 *   delete       outbox.Box.Delete       rows that were acknowledged, by number and token
 *
 * Checked: the first publications are in the order of the chain (assert at send), and when nothing is left to do, each event was published.
 *
 * The negative checks take one rule out: NO_REQUESTS (another writer writes rows itself), NO_TOKEN (rows are deleted by number), NO_MEMORY (the owner
 * goes on with what it knew before the crash), NO_PASS (a row that was just written is sent while rows before it are to be read).
 */
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef ASKS
#define ASKS 2
#endif
#define EVENTS 3
#define ROWS 8                  /* numbers 1 to 7 */

/* the database: the row with a number is of an event (0: none), and has the token of the commit that wrote it */
byte row[ROWS]; byte token[ROWS];
byte seq;                       /* last number that was drawn */
byte cursor;                    /* events that are committed */
bool requested;                 /* for event 1 */
byte memory;                    /* its name */
/* what a crash goes back to: a state that is flushed */
byte row0[ROWS]; byte token0[ROWS]; byte seq0; byte cursor0; bool requested0;

/* the owner */
byte known[ROWS]; byte knownToken[ROWS];        /* rows that it knows and has not sent, by number */
byte acked[ROWS]; byte ackedToken[ROWS];        /* rows that are acknowledged and not deleted */
byte readTo;                    /* rows up to here were read, or written by itself */
byte at;                        /* its cursor */
byte joined;                    /* the name of the memory that it has joined */
byte tokens;                    /* drawn so far: each is used once */
/* the truth about Pub/Sub */
bool published[EVENTS + 1];

byte crashes = CRASHES; byte asks = ASKS;
hidden byte i;
byte under;                     /* number of the row of the owner's commit that is under way; 0: none */
byte underRow, underToken;

/* a row that is not read yet is before the one that is written now */
#define GAP (row[1] && readTo < 1 && under > 1 || row[2] && readTo < 2 && under > 2 || row[3] && readTo < 3 && under > 3 || row[4] && readTo < 4 && under > 4 || row[5] && readTo < 5 && under > 5 || row[6] && readTo < 6 && under > 6)

/* the owner's row is visible, and offered; while rows before it are to be read, it is left to that pass */
inline write() {
	row[under] = underRow; token[under] = underToken;
	if
#ifndef NO_PASS
	:: GAP -> skip
#endif
	:: else -> known[under] = underRow; knownToken[under] = underToken; readTo = under
	fi
}

inline flush() {
	i = 0;
	do
	:: i < ROWS -> row0[i] = row[i]; token0[i] = token[i]; i++
	:: else -> break
	od;
	i = 0; seq0 = seq; cursor0 = cursor; requested0 = requested
}

inline forgetKnown() {
	i = 0;
	do
	:: i < ROWS -> known[i] = 0; knownToken[i] = 0; i++
	:: else -> break
	od;
	i = 0; readTo = 0
}

proctype Owner() {
	do
	/* a commit begins: it draws the number */
#ifndef NO_MEMORY
	:: atomic { under == 0 && joined == memory && at < EVENTS && seq + 1 < ROWS ->
#else
	:: atomic { under == 0 && at < EVENTS && seq + 1 < ROWS ->
#endif
		seq++; tokens++; under = seq; underRow = at + 1; underToken = tokens
	   }
	:: atomic { under == 0 && joined == memory && requested && seq + 1 < ROWS ->
		seq++; tokens++; under = seq; underRow = 1; underToken = tokens
	   }
	/* it ends: the cursor has not moved, and the row is there; the owner offers it to itself */
	:: atomic { under != 0 ->
		if
		:: underRow == at + 1 && cursor == at ->
			cursor++; at++; write()
		:: underRow <= at && requested ->
			requested = false; write()
		:: else -> at = cursor
		fi;
		under = 0; underRow = 0; underToken = 0
	   }
	/* rows that others have written, behind those that are known */
	:: atomic { joined == memory && readTo < seq && (row[1] && readTo < 1 || row[2] && readTo < 2 || row[3] && readTo < 3 || row[4] && readTo < 4
			|| row[5] && readTo < 5 || row[6] && readTo < 6 || row[7] && readTo < 7) ->
		readTo++;
		do
		:: row[readTo] == 0 -> readTo++
		:: else -> break
		od;
		if :: acked[readTo] == 0 || ackedToken[readTo] != token[readTo] -> known[readTo] = row[readTo]; knownToken[readTo] = token[readTo] :: else -> skip fi
	   }
#ifndef NO_MEMORY
	:: atomic { joined != memory && under == 0 -> joined = memory; at = cursor; forgetKnown() }
#else
	:: atomic { joined != memory && under == 0 -> joined = memory; at = cursor }
#endif
	od
}

proctype Publisher() {
	do
	:: atomic { known[1] || known[2] || known[3] || known[4] || known[5] || known[6] || known[7] ->
		i = 1;
		do
		:: known[i] == 0 -> i++
		:: else -> break
		od;
		if
		:: !published[known[i]] ->
			assert(known[i] == 1 || published[known[i] - 1]);
			published[known[i]] = true
		:: else -> skip
		fi;
		acked[i] = known[i]; ackedToken[i] = knownToken[i]; known[i] = 0; knownToken[i] = 0;
		i = 0
	   }
	:: atomic { acked[1] || acked[2] || acked[3] || acked[4] || acked[5] || acked[6] || acked[7] ->
		i = 1;
		do
		:: acked[i] == 0 -> i++
		:: else -> break
		od;
#ifndef NO_TOKEN
		if :: row[i] != 0 && token[i] == ackedToken[i] -> row[i] = 0; token[i] = 0 :: else -> skip fi;
#else
		row[i] = 0; token[i] = 0;
#endif
		acked[i] = 0; ackedToken[i] = 0; i = 0
	   }
	od
}

/* the verifier, or a replay: its transaction ends whenever it likes */
proctype Asks() {
	byte mine; byte drawn; byte life;
	do
#ifndef NO_REQUESTS
	:: atomic { asks > 0 && cursor >= 1 -> asks--; requested = true }
#else
	/* it stores what a first reading has left out of the middle, or publishes again, in rows of its own */
	:: atomic { asks > 0 && cursor >= 1 && drawn == 0 && seq + 1 < ROWS -> asks--; seq++; tokens++; drawn = seq; mine = tokens; life = memory }
	:: atomic { drawn != 0 ->
		if :: life == memory -> row[drawn] = 1; token[drawn] = mine :: else -> skip fi;
		drawn = 0; mine = 0
	   }
#endif
	od
}

proctype Server() {
	do
	:: atomic { row0[1] != row[1] || row0[2] != row[2] || row0[3] != row[3] || row0[4] != row[4] || row0[5] != row[5] || row0[6] != row[6] || row0[7] != row[7] ||
			seq0 != seq || cursor0 != cursor || requested0 != requested ->
		if :: crashes > 0 -> flush() :: else -> break fi
	   }
	:: atomic { crashes > 0 ->
		crashes--; memory++;
		i = 0;
		do
		:: i < ROWS -> row[i] = row0[i]; token[i] = token0[i]; i++
		:: else -> break
		od;
		i = 0; seq = seq0; cursor = cursor0; requested = requested0;
		under = 0; underRow = 0; underToken = 0
	   }
	od
}

init {
	atomic { run Owner(); run Publisher(); run Asks(); run Server() };
	timeout -> atomic { assert(published[1] && published[2] && published[3]); assert(row[1] + row[2] + row[3] + row[4] + row[5] + row[6] + row[7] == 0) }
}
