package main

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
)

// What an instance waits for, and what to do about it, is in the log from the first second on; and
// one line says what it is about to do.
func TestWhatAStartSays(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, silent.Close()) })
	page := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(rw, "<html><body>Please log in</body></html>")
	}))
	t.Cleanup(page.Close)
	locked := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		http.Error(rw, "who are you", http.StatusUnauthorized)
	}))
	t.Cleanup(locked.Close)
	hanging := silent.Addr().String()

	for i, c := range []struct {
		name, variable, value string
		says                  []string
	}{
		{"Pub/Sub hangs", "PUBSUB_EMULATOR_HOST", hanging,
			[]string{"waiting for an answer", "PUBSUB_EMULATOR_HOST=" + hanging, "start it"}},
		{"the node hangs", "RPC_URLS", "http://" + hanging, []string{"waiting for an answer", "RPC_URLS"}},
		{"the database hangs", "DATABASE_URL", "postgres://u@" + hanging + "/d",
			[]string{"waiting for an answer", "DATABASE_URL"}},
		{"a page for a node", "RPC_URLS", page.URL, []string{"with a page and not with JSON-RPC",
			"correct its host, port and path in RPC_URLS"}},
		{"no key for a node", "RPC_URLS", locked.URL, []string{"it wants an API key", "RPC_URLS"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := w.run(fmt.Sprintf("s%d", i), 0, 1, map[string]string{c.variable: c.value, "CONFIRMATION": "3"})
			require.Eventually(t, func() bool {
				log := readLog(t, p)
				for _, words := range c.says {
					if !strings.Contains(log, words) {
						return false
					}
				}

				return true
			}, patience, 50*time.Millisecond, "%v: %s", c.says, logReader{t, p})

			log := readLog(t, p)
			for _, words := range []string{
				`"message":"configured"`, `"chain":1337`, `"factories":["` + w.Contracts.Factory.Hex(),
				`"finality":"confirmations 2"`,
				`"partition":"0 of 1, modulo"`, `"endpoints":[`, `"topic":"` + lab.Topic, "was CONFIRMATIONS meant?",
			} {
				require.Contains(t, log, words)
			}

			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			require.NoError(t, p.Stop(ctx), "a stop is not held up by what it waits for")
		})
	}
}

// logReader reads a log when a test has failed.
type logReader struct {
	t *testing.T
	p *lab.Process
}

func (l logReader) String() string { return readLog(l.t, l.p) }

// What `run` refuses, `doctor` refuses in the same words, before anything is stored and after; it keeps nothing.
func TestDoctorRefusesWhatRunRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.run("r0", 0, 1, nil)
	w.ready("r0")
	w.blocks(5)
	w.audit(false)
	head, err := w.Head(t.Context())
	require.NoError(t, err)
	var escrow string
	require.NoError(t, w.DB.QueryRow(t.Context(), `select address from escrow_registry limit 1`).Scan(&escrow))
	key, password := keyFiles(t, t.TempDir(), w.Chain.Accounts()[3])
	require.NoError(t, os.WriteFile(password, []byte("another"), 0o600))
	senders := filepath.Join(t.TempDir(), "senders.json")
	require.NoError(t, os.WriteFile(senders, []byte(fmt.Sprintf(`{"senders":[{"address":%q,"keystore":%q,
		"password_file":%q,"max_fee":"1","day_fees":"1"}]}`, w.Chain.Accounts()[3].Address, key, password)), 0o600))
	keys := map[string]string{"SENDERS_FILE": senders, "COMMANDS_HTTP": "true", "COMMANDS_POLICY_FILE": policyFile(t),
		"REPLIES_TOPIC_ID": "replies"}
	w.PubSub.CreateTopic(lab.Project, "replies")

	wallet, err := testchain.OpenWallet(t.Context(), w.Chain.Client(), w.Chain.Accounts()[1])
	require.NoError(t, err)
	receipts, err := wallet.Transact(t.Context(), w.Chain, 0,
		testchain.Call{Data: common.FromHex(contracts.DealsMetaData.Bin), Gas: 2_000_000})
	require.NoError(t, err)

	for i, c := range []struct {
		says   string
		change map[string]string
		new    bool // the database is
	}{
		{"looks like an escrow; name the factory that deployed it", map[string]string{"FACTORY_ADDRESS": escrow}, true},
		{"does not contain the event EscrowDeployed",
			map[string]string{"FACTORY_ADDRESS": receipts[0].ContractAddress.Hex()}, true},
		{"no contract", map[string]string{"FACTORY_ADDRESS": "0x00000000000000000000000000000000000000aa"}, true},
		{"is above the deployment of the factory", map[string]string{"START_BLOCK": fmt.Sprint(head)}, true},
		{"is above the newest block of the chain", map[string]string{"START_BLOCK": "1000000"}, true},
		{"which this database does not follow", map[string]string{"FACTORY_ADDRESS": w.Contracts.Legacy.Hex()}, false},
		{"the fleet does not agree", map[string]string{"CONFIRMATIONS": "1"}, false},
		{"the database has no schema", map[string]string{"MIGRATE_ON_START": "false"}, true},
		{"wrong password, or not a keystore file", keys, false},
		{"COMMANDS_POLICY_FILE", merged(keys, "COMMANDS_POLICY_FILE", password), false},
		{"SENDERS_FILE has no such sender", merged(keys, "KEEPER_SENDER", escrow), false},
		{"RETRACTIONS_TOPIC_ID=nowhere", map[string]string{"RETRACTIONS_TOPIC_ID": "nowhere"}, false},
		{"REPLIES_TOPIC_ID=nowhere", merged(keys, "REPLIES_TOPIC_ID", "nowhere", "SENDERS_FILE", ""), false},
		{"EVENT_NAMES", map[string]string{"EVENT_NAMES": "Aproved"}, false},
	} {
		t.Run(c.says, func(t *testing.T) {
			env := merged(c.change, "PORT", "0")
			if c.new {
				env["DATABASE_URL"] = w.another(fmt.Sprintf("refused_%d", i))
			}

			for range 2 {
				code, out := w.operator(env, "doctor", "--timeout", "80s")
				require.NotZero(t, code)
				require.Contains(t, out, c.says)
				code, out = call(t, w.Environ("operator", 0, 2, env), "run")
				require.Equal(t, exitRefused, code, out)
				require.Contains(t, out, c.says)
			}
		})
	}

	code, out := w.operator(nil, "doctor")
	require.Zero(t, code, out)
}

// doctor examines every chain of a configuration.
func TestDoctorOfEveryChain(t *testing.T) {
	t.Parallel()
	w := newTwins(t)
	file, err := w.one.WriteChains("operator", 0, w.two.Lab)
	require.NoError(t, err)
	env := w.one.EnvironChains("operator", 0, 2, nil, file)
	code, out := call(t, env, "doctor")
	require.Zero(t, code, out)
	require.Contains(t, out, "chain 1337\n")
	require.Contains(t, out, "chain "+w.two.Chain.ChainID().String()+"\n")
	require.Contains(t, out, "takes up to 20 (TOTAL_PARTITIONS times DB_MAX_CONNS and a session, for each of 2 chains)")
	require.Contains(t, out, "take locks in it, and fill its disk with large objects: revoke connect")

	w.two.ChainEnv = merged(w.two.ChainEnv, "FACTORY_ADDRESS", "0x00000000000000000000000000000000000000aa")
	_, err = w.one.WriteChains("operator", 0, w.two.Lab)
	require.NoError(t, err)
	code, out = call(t, env, "doctor")
	require.Equal(t, exitNo, code, out)
	require.Contains(t, out, "no contract at the factory's address")
	code, out = call(t, env, "doctor", "--chain", "1337")
	require.Zero(t, code, out)
}

// merged is a copy with these settings, name and value in turn.
func merged(of map[string]string, set ...string) map[string]string {
	all := map[string]string{}
	maps.Copy(all, of)
	for pair := range slices.Chunk(set, 2) {
		all[pair[0]] = pair[1]
	}

	return all
}
