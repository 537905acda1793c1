package send_test

import (
	"context"
	"errors"
	"math/big"
	"os/exec"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
)

// The same story against geth's and anvil's own pools: more commands than an account has slots, an
// expired one that is voided, one that is refused by the contract, and a receipt for each.
func TestRealNodes(t *testing.T) {
	starts := map[string]func(context.Context) (testchain.Node, error){
		"geth": func(ctx context.Context) (testchain.Node, error) {
			return testchain.StartGeth(ctx, testchain.Options{Seed: 7})
		},
		"anvil": func(ctx context.Context) (testchain.Node, error) {
			return testchain.StartAnvil(ctx, testchain.Options{Seed: 7})
		},
	}
	for name, start := range starts {
		t.Run(name, func(t *testing.T) {
			node, err := start(t.Context())
			if errors.Is(err, exec.ErrNotFound) && name == "anvil" {
				t.Log("no npm here: anvil cannot be installed, geth has to do")
				return
			}

			require.NoError(t, err)
			w := newWorld(t, node)
			var ids []common.Hash
			for range 6 {
				ids = append(ids, w.accept(w.command(command.Approve, w.escrow(1, 0), nil)))
			}

			refund := w.accept(w.command(command.Refund, w.escrow(1, 0), nil))
			args := &command.CreateArgs{Payee: w.requester.Address, Amount: big.NewInt(5), ReleaseDelay: new(big.Int),
				ApprovalsRequired: 1, Salt: common.Hash{1}}
			ids = append(ids, w.accept(w.command(command.Create, w.createAddress(args),
				func(c *command.Command) { c.Args = args })))
			w.start(nil)
			for _, id := range ids {
				w.await(id, true, command.Done)
			}

			require.Equal(t, command.CodeUnauthorised, w.await(refund, true, command.Refused).Code)
			sent := w.sent()
			require.Len(t, sent, len(ids), "one transaction per command")
			for nonce, hash := range sent {
				require.Equal(t, 1, w.int(`select count(*) from commands where state = 'done' and nonce = $1 and tx_hash = $2 and fee_paid <= reserved`, int64(nonce), hash.Hex()))
				require.EqualValues(t, 1, w.receipt(hash).Status)
			}
		})
	}
}
