package demo

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
)

// An event may come twice, since a relayer is killed; none may be missing.
func TestVerdict(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		twice   int
		missing []string
		result  string
	}{
		"once":    {result: "result    every event was published once, in order"},
		"twice":   {twice: 1, result: "published, in order; 1 came twice"},
		"missing": {missing: []string{"0x1:1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			s := &scene{o: Options{Out: &out}, chains: []*chain{{id: 1337, audit: &lab.Audit{
				Duplicated: make([]string, c.twice), Missing: c.missing}}},
				lab: &lab.Lab{Received: &testpubsub.Recorder{}, Retracted: &testpubsub.Recorder{}}}
			err := s.report()
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
