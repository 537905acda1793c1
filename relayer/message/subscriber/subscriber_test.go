package subscriber_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
	"github.com/fusion-prime/escrow-relayer/relayer/message/subscriber"
)

// consumer keeps a row per event. Its table refuses an event that is applied twice.
type consumer struct {
	t  *testing.T
	db *pgxpool.Pool
}

func newConsumer(t *testing.T) *consumer {
	c := &consumer{t, testpg.Open(t, testpg.Bare(t))}
	c.exec(subscriber.Schema)
	c.exec(`create table kept (n bigserial, id text primary key)`)

	return c
}

func (c *consumer) exec(sql string, args ...any) {
	_, err := c.db.Exec(c.t.Context(), sql, args...)
	require.NoError(c.t, err)
}

// apply applies a message in a transaction.
func (c *consumer) apply(m *message.Message, effect subscriber.Effect) error {
	return pgx.BeginFunc(c.t.Context(), c.db, func(tx pgx.Tx) error {
		return subscriber.Apply(c.t.Context(), tx, m, effect)
	})
}

// keep is the effect. An event that is taken back must be there.
func keep(ctx context.Context, tx pgx.Tx, m *message.Message) error {
	change := `insert into kept (id) values ($1)`
	if m.Retracted {
		change = `delete from kept where id = $1`
	}

	tag, err := tx.Exec(ctx, change, m.ChainID+"/"+m.EventID)
	if err == nil && tag.RowsAffected() != 1 {
		err = errors.New("taken back without being there")
	}

	return err
}

// kept are the events that are there, in the order in which they were applied.
func (c *consumer) kept() []string {
	rows, _ := c.db.Query(c.t.Context(), `select id from kept order by n`)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(c.t, err)

	return ids
}

func decoded(t *testing.T, s *story) []*message.Message {
	messages := make([]*message.Message, len(s.Messages))
	for i, a := range s.Messages {
		var err error
		messages[i], err = message.Decode([]byte(a.Data), a.Attributes)
		require.NoError(t, err)
	}

	return messages
}

// Whatever the order and however often messages come, the consumer ends with the chain's events.
func TestEveryOrderEndsWithTheChain(t *testing.T) {
	stories := small(t)
	for seed := range uint64(16) {
		stories = append(stories, large(t, seed))
	}

	for _, s := range stories {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			c, messages := newConsumer(t), decoded(t, &s.story)
			for _, sequence := range s.Sequences {
				c.exec(`delete from escrow_messages`)
				c.exec(`delete from kept`)
				for _, digit := range sequence {
					m := messages[strings.IndexRune(digits, digit)]
					require.NoError(t, c.apply(m, keep), "%s: %s", sequence, m.EventID)
				}

				if s.InOrder {
					require.Equal(t, s.Keep, c.kept(), sequence)
				} else {
					require.ElementsMatch(t, s.Keep, c.kept(), sequence)
				}
			}
		})
	}
}

func one(t *testing.T) (event, retraction, replay *message.Message) {
	l := &teller{t: t}
	for _, k := range []message.Kind{message.Original, message.Retraction, message.Replay} {
		l.say(k, 1, 1, 0, 0)
	}

	all := decoded(t, &l.story)

	return all[0], all[1], all[2]
}

// An effect that fails leaves nothing behind: the message is applied when it comes again.
func TestFailedEffectIsAppliedLater(t *testing.T) {
	c := newConsumer(t)
	event, retraction, _ := one(t)
	failed := errors.New("failed")
	fail := func(ctx context.Context, tx pgx.Tx, m *message.Message) error {
		require.NoError(t, keep(ctx, tx, m))
		return failed
	}

	require.ErrorIs(t, c.apply(event, fail), failed)
	require.Empty(t, c.kept())
	require.NoError(t, c.apply(event, keep))
	require.ErrorIs(t, c.apply(retraction, fail), failed)
	require.Len(t, c.kept(), 1)
	require.NoError(t, c.apply(retraction, keep))
	require.Empty(t, c.kept())
}

// Transactions that run at the same time, of an event and its retraction among them, end as if they came in turn.
func TestConcurrentDeliveries(t *testing.T) {
	c := newConsumer(t)
	l := &teller{t: t}
	for tx := range byte(50) {
		for _, k := range []message.Kind{message.Original, message.Retraction, message.Original, message.Replay} {
			l.say(k, 1, tx, 0, 0)
		}
	}

	var wait sync.WaitGroup
	for _, m := range decoded(t, &l.story) {
		wait.Go(func() {
			if err := c.apply(m, keep); err != nil {
				t.Errorf("%s: %v", m.EventID, err)
			}
		})
	}

	wait.Wait()
	require.Empty(t, c.kept())
}

func (c *consumer) prune(before time.Time) (n int64) {
	require.NoError(c.t, pgx.BeginFunc(c.t.Context(), c.db, func(tx pgx.Tx) (err error) {
		n, err = subscriber.Prune(c.t.Context(), tx, before)
		return err
	}))

	return n
}

// age moves what came before now.
func (c *consumer) age() { c.exec(`update escrow_messages set at = at - interval '40 days'`) }

func TestPrune(t *testing.T) {
	c := newConsumer(t)
	event, retraction, replay := one(t)
	limit := time.Now().Add(-31 * 24 * time.Hour)
	require.NoError(t, c.apply(event, keep))
	require.Zero(t, c.prune(limit), "it came just now, although its block is old")
	c.age()
	require.EqualValues(t, 1, c.prune(limit))
	require.Zero(t, c.prune(limit))

	require.NoError(t, c.apply(replay, keep), "replays of pruned events do nothing")
	require.Len(t, c.kept(), 1)
	require.ErrorIs(t, c.apply(retraction, keep), subscriber.ErrPruned)
	require.Len(t, c.kept(), 1)

	// Newer events are not affected, and not those of other chains.
	l := &teller{t: t}
	l.say(message.Replay, 1, 2, 0, 0)
	l.say(message.Retraction, 1, 2, 0, 0)
	l.say(message.Replay, 2, 1, 0, 0)
	for _, m := range decoded(t, &l.story) {
		require.NoError(t, c.apply(m, keep))
	}

	require.Equal(t, []string{"1/" + event.EventID, "2/" + event.EventID}, c.kept())

	// The mark rises only, and an old event that comes for the first time is applied.
	c.age()
	require.EqualValues(t, 2, c.prune(limit))
	l.say(message.Original, 1, 0, 0, 0)
	old := decoded(t, &l.story)[3]
	require.NoError(t, c.apply(old, keep))
	c.age()
	require.EqualValues(t, 1, c.prune(limit))
	require.NoError(t, c.apply(decoded(t, &l.story)[0], keep))
	require.Equal(t, []string{"1/" + event.EventID, "2/" + event.EventID, "1/" + old.EventID}, c.kept())
}

func TestPruneInParts(t *testing.T) {
	c := newConsumer(t)
	c.exec(`insert into escrow_messages select '1', n::text, now(), true, false, now() - interval '40 days'
		from generate_series(1, 25000) n`)
	for _, want := range []int64{10_000, 10_000, 5_000, 0} {
		require.Equal(t, want, c.prune(time.Now().Add(-31*24*time.Hour)))
	}

	rows, _ := c.db.Query(t.Context(), `select event_id from escrow_messages`)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Equal(t, []string{""}, ids)
}

// A replay that comes while its event is pruned waits, and then sees the mark.
func TestReplayDuringPruning(t *testing.T) {
	c := newConsumer(t)
	event, _, replay := one(t)
	require.NoError(t, c.apply(event, keep))
	require.NoError(t, c.apply(replay, keep)) // the statement is prepared
	c.age()

	applied := make(chan error, 1)
	require.NoError(t, pgx.BeginFunc(t.Context(), c.db, func(tx pgx.Tx) error {
		n, err := subscriber.Prune(t.Context(), tx, time.Now().Add(-31*24*time.Hour))
		require.EqualValues(t, 1, n)
		go func() { applied <- c.apply(replay, keep) }()
		require.Eventually(t, func() (waits bool) {
			require.NoError(t, c.db.QueryRow(t.Context(), `select exists (select from pg_locks
				where not granted and relation = 'escrow_messages'::regclass)`).Scan(&waits))
			return waits
		}, 10*time.Minute, time.Millisecond)

		return err
	}))
	require.NoError(t, <-applied)
	require.Len(t, c.kept(), 1)
}

// A consumer that wants its history again gets it, but for what was retracted.
func TestForget(t *testing.T) {
	c := newConsumer(t)
	l := &teller{t: t}
	l.say(message.Original, 1, 1, 0, 0)
	l.say(message.Original, 1, 2, 0, 0)
	l.say(message.Retraction, 1, 2, 0, 0)
	l.say(message.Original, 2, 1, 0, 0)
	messages := decoded(t, &l.story)
	for _, m := range messages {
		require.NoError(t, c.apply(m, keep))
	}

	require.NoError(t, pgx.BeginFunc(t.Context(), c.db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `delete from kept where id like '1/%'`); err != nil {
			return err
		}

		return subscriber.Forget(t.Context(), tx, "1")
	}))
	require.Equal(t, []string{"2/" + messages[3].EventID}, c.kept())
	for _, m := range messages {
		require.NoError(t, c.apply(m, keep), fmt.Sprint(m.ChainID, m.EventID))
	}

	require.Equal(t, []string{"2/" + messages[3].EventID, "1/" + messages[0].EventID}, c.kept())
}
