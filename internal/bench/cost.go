package bench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
)

// costFigure is a line of the test's log: name, value, unit.
var costFigure = regexp.MustCompile(`figure (\S+) (\S+) (items|ms)\n`)

// Cost is what a block costs in requests, all endpoints together, and how soon it is read, by the
// time between blocks. It runs a test of package source on fake time: the real source with its real
// client, and the verifier's readings, against a node's HTTP and WebSocket server over pipes, with
// blocks full of other contracts' logs. Blocks come within 30 % of their time, or exactly on time
// ("steady"). There is no network and no database in it.
func Cost(ctx context.Context, o *Options) ([]Figure, error) {
	test := exec.CommandContext(ctx, "go", "test", "-count=1", "-v", "-run", "^TestCostOfABlock$",
		"github.com/fusion-prime/escrow-relayer/relayer/chain")
	test.Env = append(os.Environ(), "COST_TABLE=full")
	if o.Scale < 1 {
		test.Env = os.Environ() // a part of the table
	}

	out, err := test.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("measure the cost of a block: %w: %s", err, out[max(0, len(out)-2000):])
	}

	var figures []Figure
	for _, m := range costFigure.FindAllSubmatch(bytes.ReplaceAll(out, []byte("\r"), nil), -1) {
		value, err := strconv.ParseFloat(string(m[2]), 64)
		if err != nil {
			return nil, fmt.Errorf("read the cost of a block: %w", err)
		}

		name := string(m[1])
		figures = append(figures, o.once("cost."+name, string(m[3]), costTarget(name), value))
	}

	return figures, nil
}

// costTarget is 2 items over WebSocket with one endpoint, 2.5 over HTTP, and 0.5 more per further
// endpoint; with a block per second, 250 ms for half of the blocks and 1,100 ms for 99 of 100.
// Zero: there is no target.
func costTarget(name string) float64 {
	part := strings.Split(name, ".")
	switch {
	case part[0] == "items":
		nodes, _ := strconv.Atoi(part[3])
		return map[string]float64{"http": 2, "ws": 1.5}[part[1]] + 0.5*float64(nodes)
	case part[3] != "1s":
		return 0
	}

	return map[string]float64{"p50": 250, "p99": 1100}[part[4]]
}
