package demo

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
)

// An event may come twice where a killed relayer's messages were sent again, and no more often than they were.
func TestVerdict(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		twice, again int
		missing      []string
		result       string
	}{
		"once":                  {result: "result    every event was published once, in order"},
		"twice after a crash":   {twice: 1, again: 2, result: "published, in order; 1 came twice"},
		"twice without one":     {twice: 1},
		"twice more than again": {twice: 3, again: 2},
		"missing":               {missing: []string{"0x1:1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			of := &lab.Audit{Duplicated: make([]string, c.twice), Missing: c.missing}
			var out strings.Builder
			s := &scene{o: Options{Out: &out}, chains: []*chain{{id: 1337, audit: &lab.Audit{Duplicated: of.Duplicated,
				Missing: of.Missing, Each: []*lab.Audit{of}}}},
				lab: &lab.Lab{Received: &testpubsub.Recorder{}, Retracted: &testpubsub.Recorder{}}}
			err := s.report(nil, map[string]int{republished: c.again})
			if c.result == "" {
				require.ErrorIs(t, err, ErrDirty)
				require.NotContains(t, out.String(), "result")
				return
			}

			require.NoError(t, err)
			require.Contains(t, out.String(), c.result)
		})
	}
}
