package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/accounts/keystore"
	"github.com/ethereum/go-ethereum/common"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/metricsdoc"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/retention"
)

// keyFiles writes a keystore file of an account and its password.
func keyFiles(t *testing.T, dir string, a testchain.Account) (keyFile, passwordFile string) {
	t.Helper()
	store := keystore.NewKeyStore(filepath.Join(dir, "keys"), keystore.LightScryptN, keystore.LightScryptP)
	imported, err := store.ImportECDSA(a.Key, "pass word")
	require.NoError(t, err)
	passwordFile = filepath.Join(dir, "password")
	require.NoError(t, os.WriteFile(passwordFile, []byte("pass word\n"), 0o600))

	return imported.URL.Path, passwordFile
}

// pipe runs the binary with a standard input, and returns its standard output.
func pipe(t *testing.T, input []byte, env []string, args ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &out, &errs
	require.NoError(t, cmd.Run(), "%v: %s", args, &errs)

	return out.Bytes()
}

// The way back as a stranger would use it: two instances with one key, commands signed and sent by
// the binary, the owner of the sender killed while transactions wait in the pool. Each command has
// one effect on the chain, one transaction, and its answer on the topic.
func TestCommandsEndToEnd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, err := lab.Start(t.Context(), lab.Options{Bin: bin, Seed: 7, Server: testpg.Shared(t)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	sender, payer, requester := l.Chain.Accounts()[0], l.Chain.Accounts()[1], testchain.Accounts(99, 1)[0]
	keyFile, passwordFile := keyFiles(t, dir, sender)
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	senders := write("senders.json",
		fmt.Sprintf(`{"senders":[{"name":"payee","address":%q,"keystore":%q,"password_file":%q,`+
			`"max_fee":"100000000000000000","day_fees":"1000000000000000000"}]}`,
			sender.Address, keyFile, passwordFile))
	policy := write("policy.json",
		fmt.Sprintf(`{"requesters":[{"address":%q,"allow":[{"sender":%q,"kinds":["approve"],`+
			`"max_fee":"100000000000000000"}]}]}`, requester.Address, sender.Address))
	const replies = "command-replies"
	l.PubSub.CreateTopic(lab.Project, replies)
	recorder := l.PubSub.Tap(testpubsub.TopicName(lab.Project, replies))
	t.Cleanup(func() { require.NoError(t, recorder.Stop()) })

	env := map[string]string{"SENDERS_FILE": senders, "COMMANDS_POLICY_FILE": policy, "COMMANDS_HTTP": "true",
		"REPLIES_TOPIC_ID": replies}
	fleet := map[string]*lab.Process{}
	for i, id := range []string{"a", "b"} {
		fleet[id], err = l.Run(id, i, 2, env)
		require.NoError(t, err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, p := range fleet {
		require.NoError(t, p.Ready(ctx))
	}

	wallet, err := testchain.OpenWallet(t.Context(), l.Chain.Client(), payer)
	require.NoError(t, err)
	const n = 4
	var ids []string
	requesterDir := t.TempDir()
	requesterKey, requesterPassword := keyFiles(t, requesterDir, requester)
	for i := range n {
		receipts, err := wallet.Transact(t.Context(), l.Chain, 0, testchain.Call{
			To: &l.Contracts.Factory, Data: contracts.NewEscrowFactory().PackCreateEscrow(sender.Address, new(big.Int), 1,
				common.Address{}), Value: big.NewInt(7),
		})
		require.NoError(t, err)
		logs := receipts[0].Logs
		escrow := common.BytesToAddress(logs[len(logs)-1].Topics[1][:])
		signed := pipe(t, approval(l.Contracts.Factory, sender.Address, escrow), nil, "command", "sign", "--keystore",
			requesterKey, "--password-file", requesterPassword)
		url := fleet["a"].URL
		if i%2 == 0 {
			url = fleet["b"].URL
		}

		answer, err := sent(t, url, signed)
		require.NoError(t, err)
		ids = append(ids, answer.CommandID)
	}

	require.NoError(t, l.Chain.Mine(t.Context(), 4)) // the escrows are final, and the commands can be sent
	broadcast := func() (n int, owner string) {
		require.NoError(t, l.DB.QueryRow(t.Context(),
			`select count(*), coalesce((select instance_id from senders), '') from command_attempts`).Scan(&n, &owner))

		return n, owner
	}
	require.Eventually(t, func() bool { n, _ := broadcast(); return n > 0 }, patience, 50*time.Millisecond)
	_, owner := broadcast()
	fleet[owner].Kill()

	states := map[string]int{}
	require.Eventually(t, func() bool {
		require.NoError(t, l.Chain.Mine(t.Context(), 1))
		clear(states)
		for _, m := range recorder.Messages() {
			a, err := command.DecodeAnswer(m.Data)
			require.NoError(t, err)
			if a.State == command.Done {
				states[a.CommandID] = 1
			}
		}

		return len(states) == n
	}, patience, 200*time.Millisecond, "%v", states)

	var owners, nonces, next int
	require.NoError(t, l.DB.QueryRow(t.Context(), `select count(distinct epoch) from command_attempts`).Scan(&owners))
	require.NoError(t, l.DB.QueryRow(t.Context(),
		`select count(distinct nonce), (select next_nonce from senders) from commands where state = 'done'`).Scan(&nonces,
		&next))
	require.Equal(t, []int{n, n}, []int{nonces, next}, "as many nonces as commands, none lost")

	// Whoever lives tells of the senders, from the database; and nothing that is documented is missing.
	documented, err := metricsdoc.Read("../../deploy/metrics.md")
	require.NoError(t, err)
	survivor := map[string]*lab.Process{"a": fleet["b"], "b": fleet["a"]}[owner]
	var served map[string]*dto.MetricFamily
	require.Eventually(t, func() bool { // its next look at the database tells of them
		served = families(t, survivor)
		return served["relayer_sender_served"] != nil
	}, patience, 50*time.Millisecond)
	for name, m := range documented {
		if m.Commands && name != "relayer_commands_taken_total" { // that has no series before the first command
			require.Contains(t, served, name)
			require.Equal(t, m.Kind, strings.ToLower(served[name].GetType().String()), name)
		}
	}

	for name, f := range served {
		m, ok := documented[name]
		if !ok || !m.Commands {
			continue
		}

		for _, series := range f.GetMetric() {
			labels := []string{}
			for _, l := range series.GetLabel() {
				if name := l.GetName(); name != "chain_id" && name != "fleet" {
					labels = append(labels, l.GetName())
				}

				if values := m.Values[l.GetName()]; len(values) > 0 {
					require.Contains(t, values, l.GetValue(), name)
				}
			}

			require.ElementsMatch(t, m.Labels, labels, name)
		}
	}

	for name := range served {
		require.True(t, documented[name].Name != "" || strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_"),
			"%s is not documented", name)
	}

	code, said := call(t, l.Environ("audit", 0, 1, nil), "audit", "--senders-only")
	require.Zero(t, code, said)
	require.Contains(t, said, fmt.Sprintf("audited %d transactions of 1 senders for %d commands: 0 foreign", n, n))

	database := []string{"CHAIN_ID=1337", "DATABASE_URL=" + l.URL}
	// What has the name of a field of an answer has its type.
	var shown struct{ Attempts []command.Answer }
	var one command.Answer
	raw := pipe(t, nil, database, "command", "show", ids[0])
	require.NoError(t, json.Unmarshal(raw, &one))
	require.NoError(t, json.Unmarshal(raw, &shown))
	require.Equal(t, command.State("done"), one.State)
	require.Equal(t, one.Transaction, shown.Attempts[len(shown.Attempts)-1].Transaction)
	require.Equal(t, 1, strings.Count(string(pipe(t, nil, database, "command", "list", "--limit", "1")), "approve"))
	require.Equal(t, n, strings.Count(string(pipe(t, nil, database, "command", "list")), "approve"))
	shows := func(want string) {
		t.Helper()
		_, out := call(t, database, "status")
		require.Contains(t, out, want)
	}
	shows("is active")
	pipe(t, nil, database, "sender", "pause", "--sender", sender.Address.Hex(), "--reason", "holiday")
	shows("is paused: holiday")
	pipe(t, nil, database, "sender", "resume", "--sender", sender.Address.Hex())
	for _, args := range [][]string{
		{"command", "cancel", ids[0]}, {"command", "show", common.Hash{1}.Hex()},
		{"sender", "adopt-nonce", "--sender", common.Address{1}.Hex()},
	} {
		code, out := call(t, database, args...)
		require.Equal(t, exitNo, code, "%v: %s", args, out)
	}

	strangerKey, strangerPassword := keyFiles(t, t.TempDir(), testchain.Accounts(98, 1)[0])
	unsigned := approval(l.Contracts.Factory, sender.Address, l.Contracts.Factory)
	_, err = sent(t, survivor.URL, pipe(t, unsigned, nil, "command", "sign", "--keystore", strangerKey,
		"--password-file", strangerPassword))
	require.ErrorContains(t, err, "the relayer refuses the command")

	for _, args := range [][]string{{"command", "show", "0x12"}, {"command", "list", "--limit", "0"}, {"sender", "pause"},
		{"sender", "adopt-nonce", "--sender", "me"}} {
		code, out := call(t, database, args...)
		require.Equal(t, 2, code, "%v: %s", args, out)
	}

	// After RETENTION it tells what is left of a command that had a nonce. A slot that the survivor adopts may still
	// remember blocks below those of the commands, and a command that the sender holds just then waits for the next time.
	require.Eventually(t, func() bool {
		for _, statement := range []string{`delete from chain_blocks where number < (select max(number) from chain_blocks)`,
			`update commands set reserve_day = null, answered_at = now() - interval '9 days', expires_at = now() - interval '9 days'`} {
			_, err := l.DB.Exec(t.Context(), statement)
			require.NoError(t, err)
		}

		_, err := retention.Once(t.Context(), retention.Config{DB: l.DB, ChainID: 1337, Events: time.Hour})
		require.NoError(t, err)
		var left int
		require.NoError(t, l.DB.QueryRow(t.Context(), `select count(*) from commands`).Scan(&left))

		return left == 0
	}, patience, 50*time.Millisecond)
	left := string(pipe(t, nil, database, "command", "show", ids[0]))
	require.Contains(t, left, `"state": "done"`)
	require.Contains(t, left, "left after RETENTION")
}

// The public key of the private key 1, as OpenSSL and Cloud KMS write it, and the address that every
// wallet shows for it.
func TestSenderAddress(t *testing.T) {
	t.Parallel()
	const public = "3056301006072a8648ce3d020106052b8104000a034200" +
		"0479be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798483ada7726a3c4655da4fbfc0e1108a8fd17b448a68554199c47d08ffb10d4b8"
	text := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: common.FromHex(public)})
	require.Equal(t, "0x7E5F4552091A69125d5DfCb7b8C2659029395Bdf\n", string(pipe(t, text, nil, "sender", "address")))

	for what, wrong := range map[string][]byte{
		"no PEM": []byte("0x04"), "another curve": pem.EncodeToMemory(&pem.Block{Bytes: common.FromHex(public)[:40]}),
	} {
		cmd := exec.CommandContext(t.Context(), bin, "sender", "address")
		cmd.Stdin = bytes.NewReader(wrong)
		require.Error(t, cmd.Run(), what)
		require.Equal(t, exitRefused, cmd.ProcessState.ExitCode(), what)
	}
}

// approval is a command that nobody has signed yet.
func approval(factory, sender, escrow common.Address) []byte {
	return fmt.Appendf(nil, `{"version":1,"chain_id":"1337","factory":%q,"kind":"approve","sender":%q,"escrow":%q,`+
		`"expires_at":%d,"max_fee":"50000000000000000"}`, factory, sender, escrow, time.Now().Add(time.Hour).Unix())
}

// sent is a relayer's answer to a signed command.
func sent(t *testing.T, url string, signed []byte) (command.Answer, error) {
	t.Helper()
	c, err := command.Parse(signed)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	return (&command.Client{URL: url}).Send(ctx, c)
}

// null is JSON, and no object.
func TestSignNull(t *testing.T) {
	_, err := unsigned([]byte("null"))
	require.EqualError(t, err, "standard input is not a JSON object")
}
