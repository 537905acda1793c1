package bench

import (
	"flag"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
)

// sideBySide is how many benchmarks run at once, whatever the number of cores.
const sideBySide = "4"

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", sideBySide); err != nil {
		panic(err)
	}

	goleak.VerifyTestMain(m, append(testchain.IgnoreLeaks(),
		goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"), // of Google's client, from its init on
	)...)
}

func TestQuantile(t *testing.T) {
	for _, c := range []struct {
		values []float64
		q      float64
		want   float64
	}{
		{nil, 0.5, 0}, {[]float64{3}, 0.99, 3}, {[]float64{3, 1, 2}, 0.5, 2}, {[]float64{4, 3, 2, 1}, 0.5, 2},
		{[]float64{1, 2, 3, 4}, 1, 4}, {[]float64{1, 2}, 0, 1},
	} {
		require.Equal(t, c.want, Quantile(c.values, c.q), "%v of %v", c.q, c.values)
	}
}

func TestVerdicts(t *testing.T) {
	o := &Options{Scale: 1, Commit: "c"}
	require.True(t, *o.atLeast("a", "u", 2, []float64{1, 2, 3}).Met)
	require.False(t, *o.atLeast("a", "u", 3, []float64{1, 2, 3}).Met)
	require.False(t, *o.atMost("a", "u", 1, 2, []float64{2}).Met)
	require.Nil(t, o.atMost("a", "u", 0, 2, []float64{2}).Met, "no target")
	require.Nil(t, unlessFew(o.atMost("a", "u", 1, 2, []float64{2}), 1, 50).Met, "too few samples")
	require.Nil(t, (&Options{Scale: 0.5}).atMost("a", "u", 1, 2, []float64{2}).Met, "below full scale")
}
