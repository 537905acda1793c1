// Package layout keeps the imports pointing one way: cmd -> relayer -> {registry, election, partition} -> pgx.
package layout

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/fusion-prime/escrow-relayer/"

// rules say what a folder's own code, tests apart, must not import, and why.
var rules = []struct {
	folder, never, why string
}{
	{"registry", "relayer", "the registry knows nothing of the pipeline"},
	{"election", "relayer", "the session knows nothing of the pipeline"},
	{"partition", "relayer", "ownership knows nothing of the pipeline"},
	{"registry", "election", "the three leaves know nothing of each other"},
	{"registry", "partition", "the three leaves know nothing of each other"},
	{"election", "registry", "the three leaves know nothing of each other"},
	{"election", "partition", "the three leaves know nothing of each other"},
	{"partition", "registry", "the three leaves know nothing of each other"},
	{"partition", "election", "the three leaves know nothing of each other"},
	{"relayer", "cmd", "a command is made of the relayer, not the other way round"},
	{"relayer", "internal", "what serves tests and the demo stays out of the product"},
	{"migrations", "relayer", "the schema knows nothing of who uses it"},
	{"relayer/chain/rpc", "relayer/chain/endpoint", "a request knows no endpoint's health"},
	{"relayer/chain/rpc", "relayer/chain", "a request knows no chain"},
	{"relayer/chain/endpoint", "relayer/chain", "an endpoint knows no other endpoint"},
	{"relayer/chain", "relayer/command", "reading the chain knows nothing of writing to it"},
	{"relayer/chain", "relayer/ledger", "reading the chain knows nothing of storing it"},
	{"relayer/chain", "relayer/watch", "reading the chain knows nothing of what is done with it"},
	{"relayer/publish", "relayer/ledger", "publishing knows the outbox, not who fills it"},
	{"relayer/ledger", "relayer/publish", "what is committed knows nothing of how it is sent"},
	{"relayer/outbox", "relayer/ledger", "the outbox knows its rows, not who fills it"},
	{"relayer/publish/pubsub", "relayer/publish", "the client knows nothing of what is published"},
	{"relayer/publish/pubsub", "relayer/outbox", "the client knows nothing of what is published"},
	{"relayer/outbox", "relayer/publish", "the outbox knows its rows, not who sends them"},
	{"relayer/command/send/evm", "relayer/command/send", "what is asked of the nodes knows no sender"},
	{"relayer/ledger", "relayer/watch", "the ledger commits what it is given"},
	{"internal/testfleet", "relayer", "what a test reads was not written by the code under test"},
	{"internal/lab", "internal/testfleet", "rows that are written by hand are for tests; a lab runs real relayers"},
	{"cmd", "internal/testfleet", "rows that are written by hand are for tests"},
}

func TestImportsPointOneWay(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", `{{.ImportPath}}{{range .Imports}} {{.}}{{end}}`,
		"../../...").Output()
	require.NoError(t, err)
	seen := 0
	for line := range strings.SplitSeq(strings.TrimSpace(string(out)), "\n") {
		fields := strings.Fields(line)
		from, ok := strings.CutPrefix(fields[0], module)
		if !ok {
			continue
		}

		seen++
		for _, r := range rules {
			if !within(from, r.folder) || from == r.never {
				continue
			}

			for _, to := range fields[1:] {
				to, ours := strings.CutPrefix(to, module)
				// A folder inside the forbidden one may use its neighbours there.
				forbidden := within(to, r.never) && (!within(from, r.never) || to == r.never)
				require.False(t, ours && forbidden, "%s imports %s: %s", from, to, r.why)
			}
		}
	}

	require.Greater(t, seen, 20)
}

func within(path, folder string) bool { return path == folder || strings.HasPrefix(path, folder+"/") }

// What is deployed brings no test chain and no test server.
func TestProductionBinary(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "../../cmd/escrow-relayer").Output()
	require.NoError(t, err)
	deps := strings.Fields(string(out))
	require.Contains(t, deps, module+"relayer/publish")
	for _, d := range deps {
		for _, never := range []string{module + "internal", "testing", "github.com/ethereum/go-ethereum/node"} {
			require.False(t, within(d, never), "the deployed binary contains %s", d)
		}
	}
}
