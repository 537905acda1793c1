package main

import (
	"fmt"
	"math/big"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/internal/testsign"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
)

// A key of a remote signer, which never leaves its server: the binary sends a command with it.
func TestAKeyElsewhereSendsCommands(t *testing.T) {
	t.Parallel()
	l, err := lab.Start(t.Context(), lab.Options{Bin: bin, Seed: 8, Server: testpg.Shared(t)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	remote, requester := l.Chain.Accounts()[2], testchain.Accounts(99, 1)[0]
	var answer atomic.Pointer[string]
	signer := httptest.NewServer(testsign.Web3Signer(t, remote.Key, &answer))
	t.Cleanup(signer.Close)

	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))

		return path
	}
	const limits, replies = `"max_fee":"100000000000000000","day_fees":"1000000000000000000"`, "command-replies"
	l.PubSub.CreateTopic(lab.Project, replies)
	p, err := l.Run("a", 0, 1, map[string]string{"COMMANDS_HTTP": "true", "REPLIES_TOPIC_ID": replies,
		"SENDERS_FILE": write("senders.json", fmt.Sprintf(`{"senders":[{"address":%q,"web3signer":%q,%s}]}`,
			remote.Address, signer.URL, limits)),
		"COMMANDS_POLICY_FILE": write("policy.json", fmt.Sprintf(
			`{"requesters":[{"address":%q,"allow":[{"sender":%q,"kinds":["approve"],"max_fee":"100000000000000000"}]}]}`,
			requester.Address, remote.Address)),
	})
	require.NoError(t, err)
	require.NoError(t, p.Ready(t.Context()))

	wallet, err := testchain.OpenWallet(t.Context(), l.Chain.Client(), l.Chain.Accounts()[1])
	require.NoError(t, err)
	key, password := keyFiles(t, dir, requester)
	receipts, err := wallet.Transact(t.Context(), l.Chain, 0, testchain.Call{To: &l.Contracts.Factory,
		Data:  contracts.NewEscrowFactory().PackCreateEscrow(remote.Address, new(big.Int), 1, common.Address{}),
		Value: big.NewInt(7)})
	require.NoError(t, err)
	logs := receipts[0].Logs
	escrow := common.BytesToAddress(logs[len(logs)-1].Topics[1][:])
	signed := pipe(t, approval(l.Contracts.Factory, remote.Address, escrow), nil, "command", "sign", "--keystore", key,
		"--password-file", password)
	taken, err := sent(t, p.URL, signed)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		require.NoError(t, l.Chain.Mine(t.Context(), 1))
		var state string
		require.NoError(t, l.DB.QueryRow(t.Context(), `select state from commands where command_id = $1`,
			taken.CommandID).Scan(&state))

		return state == string(command.Done)
	}, patience, 100*time.Millisecond)
}
