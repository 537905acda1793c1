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

func TestFigures(t *testing.T) {
	for _, c := range []struct {
		samples []float64
		q, want float64
	}{
		{nil, 0.5, 0}, {[]float64{3}, 0.99, 3}, {[]float64{3, 1, 2}, 0.5, 2}, {[]float64{4, 3, 2, 1}, 0.5, 2},
		{[]float64{1, 2, 3, 4}, 1, 4}, {[]float64{1, 2}, 0, 1},
	} {
		require.Equal(t, c.want, (&Figure{Q: c.q, Samples: c.samples}).Value(), "%v of %v", c.q, c.samples)
	}

	two := []float64{1, 2, 3}
	for want, f := range map[string]Figure{
		"at least 2: met": {Least: 2, Q: 0.5, Samples: two}, "at least 3: missed": {Least: 3, Q: 0.5, Samples: two},
		"at most 2: met": {Most: 2, Q: 0.5, Samples: two}, "at most 1: missed": {Most: 1, Q: 0.5, Samples: two},
	} {
		require.Equal(t, want, f.Verdict(1))
		require.Empty(t, f.Verdict(0.5), "below full scale")
		f.Needed = 50
		require.Empty(t, f.Verdict(1), "too few samples")
	}

	require.Empty(t, (&Figure{Q: 0.5, Samples: two}).Verdict(1), "no target")
}
