package main

import (
	"encoding/json"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/lab"
)

// examine runs doctor --json.
func examine(t *testing.T, env []string) (code int, d doctor, out string) {
	t.Helper()
	code, out = call(t, env, "doctor", "--timeout", "80s", "--json")
	require.NoError(t, json.Unmarshal([]byte(out), &d), out)
	require.Equal(t, code == 1, d.Sick, out)

	return code, d, out
}

func (d *doctor) verdict(of, what string) (v verdict, found string) {
	for _, f := range d.Findings {
		if f.Of == of && f.What == what && (v == "" || f.Verdict == wrong) {
			v, found = f.Verdict, f.Found
		}
	}

	return v, found
}

// says requires a verdict, and words of what was found.
func (d *doctor) says(t *testing.T, v verdict, of, what, words string) {
	t.Helper()
	got, found := d.verdict(of, what)
	require.Equal(t, v, got, found)
	require.Contains(t, found, words)
}

// policyFile allows one requester one thing.
func policyFile(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "policy.json")
	require.NoError(t, os.WriteFile(path, []byte(`{"requesters":[{"name":"desk",
		"address":"0x0000000000000000000000000000000000000001","allow":[{"kinds":["approve"],"max_fee":"1",
		"sender":"0x0000000000000000000000000000000000000002"}]}]}`), 0o600))

	return path
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ownServer)
	w.blocks(30)
	proxy := func(t *testing.T, list ...faults.Fault) *faults.Node {
		p, err := faults.NewNode(w.Chain.HTTP(), w.Chain.WS(), 1)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, p.Close()) })
		for _, f := range list {
			p.Inject(f)
		}

		return p
	}
	head, err := w.Head(t.Context())
	require.NoError(t, err)

	t.Run("well", func(t *testing.T) {
		env := w.Environ("doc", 0, 1, map[string]string{"RPC_URLS": w.Chain.WS() + "," + w.Chain.HTTP()})
		code, d, out := examine(t, env)
		require.Zero(t, code, out)
		ws := w.Chain.WS()
		for _, c := range [][2]string{
			{"database", "login"}, {"database", "database"}, {"database", "schema"}, {"database", "start block"},
			{"database", "settings"}, {"database", "clock"}, {"database", "connections"}, {"topics", "topics"},
			{"chain", "chain"}, {ws, "chain"}, {ws, "head"}, {ws, "safe"}, {ws, "finalized"},
			{ws, "headers"}, {ws, "receipts"}, {ws, "state"}, {ws, "range"}, {ws, "history"},
			{ws, "latency"},
			{w.Chain.HTTP(), "chain"},
		} {
			v, found := d.verdict(c[0], c[1])
			require.Equal(t, fine, v, "%v: %s", c, found)
		}

		v, _ := d.verdict("files", "keys")
		require.Empty(t, v, "there is none")
		v, _ = d.verdict("topics", "publish")
		require.Equal(t, unknown, v, "an emulator has no rights")
		d.says(t, note, "start", "warning", "migrations are missing: the first instance applies them")
		var made bool
		require.NoError(t, w.DB.QueryRow(t.Context(),
			`select exists (select from pg_class where relnamespace = 'public'::regnamespace)`).Scan(&made))
		require.False(t, made, "it changes nothing")
		code, out = call(t, env, "doctor", "--timeout", "80s")
		require.Zero(t, code, out)
		require.Contains(t, out, "ok      "+ws+" chain        chain 1337")
	})

	t.Run("endpoints", func(t *testing.T) {
		limited := proxy(t, faults.Fault{Mode: faults.Range, N: 11})
		pruned := proxy(t, faults.Fault{Mode: faults.Pruned, N: head - 5})
		late := proxy(t, faults.Fault{Mode: faults.Behind, N: 20})
		other := proxy(t, faults.Fault{Mode: faults.Chain, N: 5})
		down := proxy(t, faults.Fault{Mode: faults.Down})
		code, d, out := examine(t, w.Environ("doc", 0, 1, map[string]string{"RPC_URLS": strings.Join([]string{
			limited.WS(), pruned.HTTP(), late.HTTP(), other.HTTP(), down.HTTP() + "/v3/0123456789abcdef",
		}, ",")}))
		require.Equal(t, 1, code, out)
		require.NotContains(t, out, "0123456789abcdef")
		_, found := d.verdict(limited.WS(), "range")
		require.Contains(t, found, "logs of 11 blocks at once")
		v, found := d.verdict(pruned.HTTP(), "history")
		require.Equal(t, wrong, v)
		require.Contains(t, found, "back to block "+strconv.FormatUint(head-5, 10)+" only")
		v, found = d.verdict(late.HTTP(), "head")
		require.Equal(t, wrong, v)
		require.Contains(t, found, "20 behind")
		v, found = d.verdict(other.HTTP(), "chain")
		require.Equal(t, wrong, v)
		require.Contains(t, found, "serves chain 5, CHAIN_ID is 1337")
		v, _ = d.verdict(down.HTTP(), "chain")
		require.Equal(t, wrong, v)
		for _, p := range []*faults.Node{limited, pruned, late} {
			sum := 0
			for _, m := range []string{"eth_chainId", "eth_getBlockByNumber", "eth_getCode", "eth_getLogs", "eth_subscribe",
				"eth_getBlockReceipts", "eth_getBlockByHash", "eth_getTransactionCount"} {
				sum += p.Requests(m)
			}

			t.Logf("%d requests", sum)
			require.LessOrEqual(t, sum, 400) // 170, and what a busy machine answers too late is asked again
			require.Greater(t, sum, 10)
		}
	})

	t.Run("finality", func(t *testing.T) {
		code, d, out := examine(t, w.Environ("doc", 0, 1,
			map[string]string{"RPC_URLS": proxy(t, faults.Fault{Mode: faults.Refused,
				Words: "the method is not available"}).HTTP()}))
		require.Equal(t, 1, code, out)
		d.says(t, wrong, "chain", "chain", "RPC_URLS")
	})

	t.Run("rights", func(t *testing.T) {
		code, out := call(t, w.Environ("doc", 0, 1, nil), "migrate")
		require.Zero(t, code, out)
		_, err := w.DB.Exec(t.Context(), `create role poor login password 'poor-secret';
			grant usage on schema public to poor;
			revoke create on schema public from public;
			grant select, insert, update, delete on all tables in schema public to poor; revoke update, delete on outbox
				from poor; revoke select on senders from poor; alter role poor set synchronous_commit = off`)
		require.NoError(t, err)
		u, err := url.Parse(w.URL)
		require.NoError(t, err)
		u.User = url.UserPassword("poor", "poor-secret")
		code, d, out := examine(t, w.Environ("doc", 0, 1, map[string]string{"DATABASE_URL": u.String()}))
		require.Equal(t, 1, code, out)
		v, _ := d.verdict("database", "durability")
		require.Equal(t, note, v)
		v, _ = d.verdict("database", "rights")
		require.Equal(t, wrong, v, out)
		require.Contains(t, out, "update outbox, delete outbox, select senders: grant them", "every instance reads senders")
		require.NotContains(t, out, "poor-secret")
		_, err = w.DB.Exec(t.Context(), `grant update, delete on outbox to poor; grant select on senders to poor`)
		require.NoError(t, err)
		env := w.Environ("doc", 0, 1, map[string]string{"DATABASE_URL": u.String()})
		code, _, out = examine(t, env)
		require.Zero(t, code, out)
		const newest = ` where version_id = (select max(version_id) from escrow_relayer_versions)`
		_, err = w.DB.Exec(t.Context(), `update escrow_relayer_versions set is_applied = false`+newest)
		require.NoError(t, err)
		code, d, out = examine(t, env)
		require.Equal(t, 1, code, out)
		d.says(t, wrong, "database", "schema", "may not create tables in the schema: grant usage, create on it")
		_, err = w.DB.Exec(t.Context(), `update escrow_relayer_versions set is_applied = true`+newest)
		require.NoError(t, err)
	})

	t.Run("where commands come from and answers go to", func(t *testing.T) {
		variables := map[string]string{"COMMANDS_SUBSCRIPTION_ID": "commands", "REPLIES_TOPIC_ID": "replies",
			"COMMANDS_POLICY_FILE": policyFile(t)}
		code, d, out := examine(t, w.Environ("doc", 0, 1, variables))
		require.Equal(t, 1, code, out)
		d.says(t, wrong, "topics", "topics", "REPLIES_TOPIC_ID=replies")
		d.says(t, wrong, "topics", "COMMANDS_SUBSCRIPTION_ID", "gcloud pubsub subscriptions create commands")

		for _, topic := range []string{"asked", "replies"} {
			w.PubSub.CreateTopic(lab.Project, topic)
		}

		require.NoError(t, w.PubSub.SubscribeInOrder(lab.Project, "asked", "commands"))
		code, d, out = examine(t, w.Environ("doc", 0, 1, variables))
		require.Zero(t, code, out)
		d.says(t, fine, "topics", "COMMANDS_SUBSCRIPTION_ID", "topics/asked")
		d.says(t, unknown, "topics", "consume", "does not tell") // an emulator has no rights

		require.NoError(t, w.PubSub.DeleteTopic(lab.Project, "asked"))
		code, d, out = examine(t, w.Environ("doc", 0, 1, variables))
		require.Equal(t, 1, code, out)
		d.says(t, wrong, "topics", "COMMANDS_SUBSCRIPTION_ID", "no topic any more")
	})

	t.Run("database and topic", func(t *testing.T) {
		code, d, out := examine(t, w.Environ("doc", 0, 1,
			map[string]string{"DATABASE_URL": w.PG.URL("nowhere"), "PUBSUB_TOPIC_ID": "nowhere", "RETRACTIONS_TOPIC_ID": ""}))
		require.Equal(t, 1, code, out)
		d.says(t, wrong, "database", "database", "DATABASE_URL")
		d.says(t, wrong, "topics", "topics", "PUBSUB_TOPIC_ID=nowhere")
		code, d, out = examine(t, w.Environ("doc", 0, 200, nil))
		require.Equal(t, 1, code, out)
		d.says(t, wrong, "database", "connections", "max_connections")
	})
}

// Whatever hangs, doctor ends by itself and says of each what has not answered.
func TestDoctorEndsWhateverHangs(t *testing.T) {
	t.Parallel()
	require.Less(t, doctorLimit, 20*time.Second)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, silent.Close()) })
	hanging := silent.Addr().String()
	input := rightInput()
	input["DATABASE_URL"] = "postgres://u:" + secretPassword + "@" + hanging + "/d"
	input["RPC_URL"] = "http://" + hanging + "/v2/" + secretKey
	input["PUBSUB_EMULATOR_HOST"] = hanging
	var env []string
	for name, value := range input {
		env = append(env, name+"="+value)
	}

	code, out := callOnce(t, env, "doctor", "--json") // which kills what takes much longer: that is no exit code
	require.Equal(t, exitNo, code, out)
	noSecret(t, out)
	var d doctor
	require.NoError(t, json.Unmarshal([]byte(out), &d), out)
	for _, of := range []string{"database", "topics", "http://" + hanging} {
		require.True(t, slices.ContainsFunc(d.Findings, func(f finding) bool {
			return f.Of == of && f.Verdict == wrong
		}), "%s: %s", of, out)
	}
}

// A chain that was taken out of the configuration while messages of it waited is told.
func TestDoctorFindsAChainThatNobodyFollows(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	env := w.Environ("doc", 0, 1, nil)
	code, out := call(t, env, "migrate")
	require.Zero(t, code, out)
	code, d, out := examine(t, env)
	require.Zero(t, code, out)
	d.says(t, fine, "database", "chains", "no messages wait")
	for _, chain := range []int64{1337, 5} { // its own may wait
		_, err := w.DB.Exec(t.Context(), `insert into leadership (chain_id, next_block, start_block, verified_block)
			values ($1, 9, 9, 8)`, chain)
		require.NoError(t, err)
		_, err = w.DB.Exec(t.Context(), `insert into outbox (chain_id, token, block_number, log_index, slot, kind, escrow, event_type)
			values ($1, 1, 1, 1, 1, 0, '\x01', 'Approved')`, chain)
		require.NoError(t, err)
	}

	code, d, out = examine(t, env)
	require.Equal(t, 1, code, out)
	d.says(t, wrong, "database", "chains", "messages of chain 5 wait")
	require.NotContains(t, out, "messages of chain 1337 wait")
}
