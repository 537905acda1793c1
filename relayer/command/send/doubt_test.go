package send_test

import (
	"bytes"
	"math/big"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send/evm"
)

// another is a node that tries something else than what it is asked to.
func (w *world) another(asked, tried string) (url string, hits *atomic.Int64) {
	hits = &atomic.Int64{}
	return w.before(func(body []byte) []byte {
		if bytes.Contains(body, []byte(asked)) {
			hits.Add(1)
		}

		return bytes.ReplaceAll(body, []byte(asked), []byte(tried))
	}), hits
}

// impatient has the looks of a sender follow each other fast.
func (w *world) impatient(urls ...string) {
	w.nodes = evm.NewNodes(w.follow(urls...))
	w.start(func(c *send.Config) {
		c.HoldFor = time.Millisecond
		c.Keeper = &send.Keeper{MinAmount: big.NewInt(7), MaxFee: big.NewInt(1e16), DayFees: big.NewInt(1e17),
			Every: 10 * time.Millisecond}
	})
}

// C4: a call that fails at one endpoint only ends no command: another one is asked, and once time has shown that none
// of them is behind the command is carried out.
func TestOneEndpointRefusesNothing(t *testing.T) {
	t.Parallel()
	stranger := func(w *world) (asked, tried string) {
		return `"from":"` + text(w.sender.Address) + `"`, `"from":"` + text(w.node.Accounts()[2].Address) + `"`
	}
	for name, c := range map[string]struct {
		lie func(*world) (asked, tried string)
		ask func(*world) common.Hash
	}{
		"it may not": {stranger, func(w *world) common.Hash {
			return w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
		}},
		"it would be elsewhere": {stranger, func(w *world) common.Hash {
			args := &command.CreateArgs{Payee: w.requester.Address, Amount: big.NewInt(5), ReleaseDelay: new(big.Int),
				ApprovalsRequired: 1, Salt: common.Hash{1}}
			return w.accept(w.command(command.Create, w.createAddress(args), func(c *command.Command) { c.Args = args }))
		}},
		"a keeper's": {func(*world) (asked, tried string) {
			escrow := contracts.NewEscrow()
			return common.Bytes2Hex(escrow.PackRelease()), common.Bytes2Hex(escrow.PackRefund())
		}, func(w *world) common.Hash {
			w.approvedAndDue()
			w.verified(1000)
			var id string
			require.Eventually(w.t, func() bool {
				w.mineAhead()
				return w.db.QueryRow(w.t.Context(), `select command_id from commands where requester = 'keeper'`).Scan(&id) == nil
			}, patience, 10*time.Millisecond)

			return common.HexToHash(id)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, startSim(t))
			liar, lies := w.another(c.lie(w))
			w.impatient(liar, w.node.HTTP())
			id := c.ask(w)
			require.Equal(t, command.Done, w.await(id, true, command.Done, command.Refused, command.Reverted).State)
			require.Positive(t, lies.Load())
			require.Equal(t, []command.State{command.Done}, w.replies(id))
		})
	}
}

// C4: what cannot succeed is refused, and what was sent is answered, though another endpoint is gone, or never says
// what it makes of it.
func TestASilentEndpointKeepsNoAnswer(t *testing.T) {
	t.Parallel()
	for name, instead := range map[string][]byte{"it is gone": {}, "it hangs": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, startSim(t))
			escrow := w.escrow(1, 0)
			w.impatient(w.node.HTTP(), w.silent(escrow, instead))
			refused := w.await(w.accept(w.command(command.Refund, escrow, nil)), true, command.Refused)
			require.Equal(t, command.CodeUnauthorised, refused.Code, "the sender is the payee")
			require.Greater(t, w.int(`select holds from commands`), 9, "it could have answered meanwhile")

			// Nor what a receipt alone says.
			void := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
			w.awaitBroadcast(void)
			w.exec(`update commands set cancel_requested = true where command_id = $1`, void.Hex())
			w.await(void, true, command.Voided, command.Done)
		})
	}
}

// A call that fails is not tried at endpoints that are out of use: a round would wait for them.
func TestWhatIsDownIsNotAsked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	var down atomic.Bool
	source := w.follow(w.node.HTTP(), w.before(func(body []byte) []byte {
		if down.Load() {
			return []byte{}
		}

		return body
	}))
	require.Eventually(t, func() bool { return source.View().Ready && source.Endpoints()[1].Up }, patience,
		10*time.Millisecond)
	down.Store(true)
	require.Eventually(t, func() bool { return !source.Endpoints()[1].Up }, patience, 10*time.Millisecond)
	asked := &countingCaller{Caller: source, items: map[string]int{}}
	w.start(func(c *send.Config) { c.Chain, c.HoldFor = evm.NewNodes(asked), time.Millisecond })
	w.await(w.accept(w.command(command.Refund, w.escrow(1, 0), nil)), true, command.Refused)
	items, _ := asked.counted()
	require.GreaterOrEqual(t, items["eth_call"], 10)
	require.LessOrEqual(t, items["eth_call"], items["eth_getBalance"], "each is tried with a look at the state, once")
}
