package demo

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

var update = flag.Bool("update", false, "write the golden files")

func example() *look {
	return &look{
		clock: 26100 * time.Millisecond, url: "http://127.0.0.1:40001",
		counters: map[string]int{suppressed: 7}, moments: []string{"  25.6s  SIGKILL to relayer-2, the leader of chain 1337",
			"  26.0s  relayer-1 leads chain 1337, 480ms later (epoch 2)"},
		chains: []chainLook{{
			head: 31, factories: 2, received: map[string]int{"EscrowDeployed": 40, "Approved": 61},
			fleet: fleet.Fleet{
				ChainID: 1337,
				Leader:  fleet.Leader{Instance: "relayer-1", Epoch: 2, Held: true, Valid: true},
				Instances: []fleet.Instance{
					{ID: "relayer-0", State: fleet.Serving, Alive: true, Slots: 840, Escrows: 12, Cursor: 30, Head: 31},
					{ID: "relayer-1", State: fleet.Serving, Alive: true, Leader: true, Slots: 840, Escrows: 9, Cursor: 27, Head: 30},
					{ID: "relayer-2", State: fleet.Dead, Slots: 840, Cursor: 24, Head: 25},
				},
				Slots:   fleet.Slots{Total: 2520, Served: 1680, Unserved: 840},
				Chain:   fleet.Chain{LowestCursor: 24},
				Escrows: fleet.Escrows{Active: 21, Released: 18, Refunded: 1},
				Outbox:  fleet.Outbox{Messages: 3},
			},
		}, {
			head: 29, factories: 1, received: map[string]int{"EscrowDeployed": 3, "EscrowRefunded": 1},
			fleet: fleet.Fleet{
				ChainID: 1338,
				Instances: []fleet.Instance{
					{ID: "relayer-0", State: fleet.Serving, Alive: true, Slots: 2520, Escrows: 3, Cursor: 28, Head: 29},
				},
				Slots:   fleet.Slots{Total: 2520, Served: 2520},
				Chain:   fleet.Chain{LowestCursor: 28},
				Escrows: fleet.Escrows{Active: 2, Refunded: 1},
			},
		}},
	}
}

func TestPicture(t *testing.T) {
	const golden = "testdata/picture.txt"
	l := example()
	lines := append(l.picture(), "", l.chains[0].oneLine(), l.chains[1].oneLine())
	got := text.StripEscape(strings.Join(lines, "\n") + "\n")
	if *update {
		require.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
	}

	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), got, "if it is meant to be so: go test ./internal/demo -update")
}

// Whatever the size of the terminal: no line wraps, none is below the edge, and a picture begins
// where the last one did.
func TestDrawStaysInItsPlace(t *testing.T) {
	var out bytes.Buffer
	width, height := 40, 12
	s := &scene{o: Options{Out: &out, Size: func() (int, int) { return width, height }}}
	control := regexp.MustCompile(`\x1b\[[0-9;]*[A-Za-z]`)
	climb := regexp.MustCompile(`\x1b\[\d+A`)
	s.draw(example())
	require.Empty(t, climb.FindString(out.String()))
	for _, size := range [][2]int{{40, 12}, {200, 50}, {1, 1}, {80, 24}} {
		drawn := s.drawn
		width, height = size[0], size[1]
		out.Reset()
		s.draw(example())
		require.Equal(t, fmt.Sprintf("\x1b[%dA", drawn), climb.FindString(out.String()))
		lines := strings.Split(strings.TrimSuffix(control.ReplaceAllString(out.String(), ""), "\n"), "\n")
		require.LessOrEqual(t, len(lines), max(1, height-1))
		for _, line := range lines {
			require.LessOrEqual(t, text.StringWidth(strings.TrimPrefix(line, "\r")), width, line)
		}
	}
}

func TestGapIsCountedFromTheBlow(t *testing.T) {
	s := &scene{}
	var leading, other role
	_, struck := s.parry(&leading, "relayer-0", 1)
	require.False(t, struck, "nothing was done to a leader")
	s.blow("SIGKILL to relayer-0", &leading)
	_, struck = s.parry(&other, "relayer-1", 2)
	require.False(t, struck, "nothing was done to who has the other role")
	g, struck := s.parry(&leading, "relayer-1", 2)
	require.True(t, struck)
	require.Equal(t, "relayer-1", g.next)
	require.Equal(t, "SIGKILL to relayer-0", g.cause)
	_, struck = s.parry(&leading, "relayer-2", 3)
	require.False(t, struck, "one blow, one gap")
	require.Equal(t, []gap{g}, s.gaps(&leading))
}
