package web

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestHistoryKeepsAnHour(t *testing.T) {
	t.Parallel()
	var h history
	start := time.Now()
	for n := range historySize + 10 {
		h.add(sample{at: start.Add(time.Duration(n) * time.Second), head: int64(n)})
	}

	all := h.since(time.Time{})
	require.Len(t, all, historySize)
	require.EqualValues(t, 10, all[0].head)
	require.EqualValues(t, historySize+9, all[historySize-1].head)
	require.Len(t, h.since(start.Add(historySize*time.Second)), 9)
}

func TestPlots(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	require.Empty(t, newPast(nil, now).heights().Lines)

	p := newPast([]sample{{at: ago(30 * time.Minute), outbox: 0}, {at: ago(30*time.Minute - 20*time.Second), outbox: 50},
		{at: ago(0), outbox: 100}}, now).amount("Outbox", number, outboxOf)
	require.Equal(t, "100", p.Hi)
	require.Equal(t, "Outbox, last hour, at most 100", p.Label)
	require.Equal(t, 2, strings.Count(p.Lines[0].Path, "M"), "half an hour without samples is a gap")
	require.True(t, strings.HasSuffix(p.Lines[0].Path, "M240.0 1.0"), "the highest value now is in the upper right corner")
	require.Equal(t, 2, strings.Count(p.Lines[0].Area, "Z"))

	flat := newPast([]sample{{at: ago(time.Minute), head: 5, target: 5, cursor: 6}}, now).heights()
	require.Equal(t, "5", flat.Lo)
	require.NotContains(t, flat.Lines[0].Path, "NaN")

	// A peak between two columns must not be lost.
	peak := []sample{{at: ago(54500 * time.Millisecond), lag: 9, cursor: 1, target: 1},
		{at: ago(54 * time.Second), lag: 1, cursor: 1, target: 1}}
	require.Equal(t, "9 blocks", newPast(peak, now).amount("Lag", blocks, lagOf).Hi)
	for _, v := range newPast(peak, now).buckets(lagOf) {
		require.True(t, v == nil || *v == 9)
	}
}

func TestYoungProcessPlotsLess(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for known, name := range map[time.Duration]string{
		time.Second: "last 5 min", 5 * time.Minute: "last 5 min", 6 * time.Minute: "last 20 min",
		21 * time.Minute: "last hour", time.Hour: "last hour",
	} {
		p := newPast([]sample{{at: now.Add(-known)}, {at: now}}, now)
		require.Equal(t, name, p.name)
		require.GreaterOrEqual(t, p.window, known)
	}

	// At a sample every two seconds the line has no gaps, though the columns of the shortest window are narrower.
	var samples []sample
	for at := now.Add(-4 * time.Minute); !at.After(now); at = at.Add(2 * time.Second) {
		samples = append(samples, sample{at: at, outbox: 1})
	}

	require.Equal(t, 1, strings.Count(newPast(samples, now).amount("Outbox", number, outboxOf).Lines[0].Path, "M"))
}

func TestFormats(t *testing.T) {
	t.Parallel()
	require.Equal(t, "0", ether("0"))
	for want, got := range map[string]string{
		"0": count(0), "999": count(999), "1,000": count(1000), "−1,234,567": count(-1234567),
		"–": known(0), "1.5": ether("1500000000000000000"), "1": ether("1000000000000000000"),
		"0.000000000000000001": ether("1"), "x1": ether("x1"),
		"115792089237316195423570985008687907853269984665640564039457.584007913129639935": ether("115792089237316195423570985008687907853269984665640564039457584007913129639935"),
		"0x12c079…145b03":         short("0x12c0790000000000000000000000000000145b03"),
		"1500000000000000000000":  short("1500000000000000000000"),
		"2026-11-21 05:46:40 UTC": unix("1795240000"), "9999999999999999999999": unix("9999999999999999999999"),
		"1 block": plural(1, "block", "blocks"), "2,000 blocks": plural(2000, "block", "blocks"),
	} {
		require.Equal(t, want, got)
	}
}
