package partition

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testpg"
)

func TestSettingsOfAFleetAgree(t *testing.T) {
	t.Parallel()
	url := testpg.New(t)
	pool := testpg.Open(t, url)
	with := func(topic, adopt string, mixed bool) func(*Config) {
		return func(c *Config) {
			c.Settings = Settings{Stream: map[string]string{"PUBSUB_TOPIC_ID": topic},
				Other: map[string]string{"ADOPT_AFTER": adopt}, Mixed: mixed}
		}
	}
	a := born(t, url, pool, "a", 0, 1, with("one", "5s", false))
	born(t, url, pool, "b", 0, 1, with("one", "9s", false))
	steps(t, a)

	refused := born(t, url, pool, "c", 0, 1, with("one", "5s", false))
	refused.cfg.Settings.Stream["PUBSUB_TOPIC_ID"] = "two"
	err := refused.Join(t.Context())
	require.ErrorIs(t, err, ErrDisagree)
	require.ErrorContains(t, err, `PUBSUB_TOPIC_ID is "one" on a and "two" on c`)
	require.ErrorContains(t, err, "ALLOW_MIXED_SETTINGS")

	// A rolling change says so, and then the older ones may come back too.
	refused.cfg.Settings.Mixed = true
	require.NoError(t, refused.Join(t.Context()))
	require.NoError(t, a.Join(t.Context()))
}

func TestDifferences(t *testing.T) {
	t.Parallel()
	list := Differences(map[string]Settings{
		"a": {Stream: map[string]string{"T": "1", "U": "x"}, Other: map[string]string{"O": "1"}},
		"b": {Stream: map[string]string{"T": "2", "U": "x"}, Other: map[string]string{"O": "2"}},
		"c": {Stream: map[string]string{"T": "1"}},
		"d": {},
	})
	require.Len(t, list, 2)
	require.Equal(t, Difference{"T", true, map[string][]string{"1": {"a", "c"}, "2": {"b"}}}, list[0])
	require.Equal(t, `T is "1" on a, c and "2" on b`, list[0].String())
	require.Equal(t, "O", list[1].Name)
	require.False(t, list[1].Stream)
}

// A dead instance's settings bind nobody, and the log says what changes.
func TestSettingsOfTheDead(t *testing.T) {
	t.Parallel()
	url := testpg.New(t)
	pool := testpg.Open(t, url)
	with := func(topic string) func(*Config) {
		return func(c *Config) {
			c.AdoptAfter, c.Settings = time.Hour, Settings{Stream: map[string]string{"PUBSUB_TOPIC_ID": topic}}
		}
	}
	a := born(t, url, pool, "a", 0, 1, with("one"))
	a.die(t)
	var log bytes.Buffer
	b := born(t, url, pool, "b", 0, 1, func(c *Config) {
		with("two")(c)
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
	})
	require.Contains(t, log.String(), `PUBSUB_TOPIC_ID is \"one\" on a before and \"two\" on b now`)

	log.Reset()
	require.NoError(t, b.Join(t.Context())) // with the same settings again
	require.NotContains(t, log.String(), "other settings")
}

// An ABI may know further events: then those that lack them own no slots. Of two that each know another event, one is
// refused.
func TestEventsOfAFleet(t *testing.T) {
	url := testpg.New(t)
	pool := testpg.Open(t, url)
	with := func(digest string, events map[string]string) func(*Config) {
		return func(c *Config) {
			c.Settings = Settings{Stream: map[string]string{ABI: digest}, Events: events}
		}
	}
	a := born(t, url, pool, "a", 0, 1, with("one", map[string]string{"x": "X(a)"}))
	steps(t, a)
	require.Len(t, a.holding.Slots, Slots)
	b := born(t, url, pool, "b", 0, 1, with("two", map[string]string{"x": "X(a)", "y": "Y()"}))
	steps(t, a, b)
	require.Equal(t, "b", a.Lacks())
	require.Empty(t, b.Lacks())
	require.Empty(t, a.holding.Slots)
	require.Len(t, b.holding.Slots, Slots)

	for name, events := range map[string]map[string]string{
		"another event": {"x": "X(a)", "z": "Z()"}, "another name": {"x": "X(b)", "y": "Y()", "z": "Z()"},
	} {
		a.cfg.Settings = Settings{Stream: map[string]string{ABI: "three"}, Events: events}
		require.ErrorIs(t, a.Join(t.Context()), ErrDisagree, name)
	}

	b.die(t)
	steps(t, a)
	require.Empty(t, a.Lacks())
	require.Len(t, a.holding.Slots, Slots)
}
