package testchain

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
)

// gethVersion is the newest whose command builds: the newer library's does not.
const gethVersion = "v1.17.8"

// Geth is geth --dev.
type Geth struct{ *process }

// StartGeth starts geth, after building it the first time, which takes two minutes. Options.ChainID
// and GasLimit are geth's own.
func StartGeth(ctx context.Context, o Options) (*Geth, error) {
	if o.ChainID != 0 && o.ChainID != 1337 {
		return nil, fmt.Errorf("start geth with chain id %d: geth --dev has 1337", o.ChainID)
	}

	program, err := cached(ctx, "geth-"+gethVersion, func(dir string) error {
		cmd := exec.CommandContext(ctx, "go", "install", "github.com/ethereum/go-ethereum/cmd/geth@"+gethVersion)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOBIN="+dir, "GOFLAGS=", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build geth: %w\n%s", err, out)
		}

		return nil
	}, "geth")
	if err != nil {
		return nil, err
	}

	o = o.withDefaults()
	p, err := startProcess(ctx, o, program, func(dir, host, port string) []string {
		return []string{
			"--dev", "--dev.period", strconv.Itoa(int(o.Interval / time.Second)), "--dev.gaslimit", "60000000",
			"--datadir", filepath.Join(dir, "data"), "--ipcdisable", "--nodiscover", "--maxpeers", "0", "--port", "0",
			"--http", "--http.addr", host, "--http.port", port, "--http.vhosts", "*", "--http.api",
			"eth,net,web3,txpool,debug,dev",
			"--ws", "--ws.addr", host, "--ws.port", port, "--ws.origins", "*", "--ws.api", "eth,net,web3,txpool,debug,dev",
			"--rpc.txfeecap", "0", "--cache", "64", "--gcmode", "archive", "--verbosity", "2",
		}
	})
	if err != nil {
		return nil, err
	}

	g := &Geth{p}
	if err := g.fund(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("%w\n%s", err, g.log()), g.Stop())
	}

	return g, nil
}

// fund gives our accounts of what geth's own, unlocked one has.
func (g *Geth) fund(ctx context.Context) error {
	var rich []common.Address
	if err := g.client.CallContext(ctx, &rich, "eth_accounts"); err != nil || len(rich) == 0 {
		return fmt.Errorf("ask geth for its account: %w", err)
	}

	for i, a := range g.accounts {
		// With the nonce: geth would count on from the newest that its pool has lined up, maybe an earlier one.
		tx := map[string]any{"from": rich[0], "nonce": hexutil.Uint64(i), "to": a.Address, "value": (*hexutil.Big)(endowment)}
		if err := g.call(ctx, "eth_sendTransaction", tx); err != nil {
			return fmt.Errorf("fund %s: %w", a.Address, err)
		}
	}

	// The pool learns of a block after it is the head, and until then refuses accounts that its state lacks.
	return g.poll(ctx, func() (bool, error) {
		var pool struct{ Pending, Queued hexutil.Uint }
		err := g.client.CallContext(ctx, &pool, "txpool_status")
		return pool.Pending+pool.Queued == 0, err
	})
}

// Mine makes blocks by withdrawals of nothing, for which geth --dev makes a block as it does for a transaction.
func (g *Geth) Mine(ctx context.Context, n int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mine(ctx, n)
}

func (g *Geth) mine(ctx context.Context, n int) error {
	for range n {
		before, err := g.head(ctx)
		if err != nil {
			return err
		}

		if err := g.call(ctx, "dev_addWithdrawal", map[string]any{"index": "0x0", "validatorIndex": "0x0",
			"address": common.Address{1}, "amount": "0x0"}); err != nil {
			return err
		}

		if err := g.await(ctx, before+1); err != nil {
			return err
		}
	}

	return nil
}

func (g *Geth) await(ctx context.Context, block uint64) error {
	err := g.poll(ctx, func() (bool, error) {
		head, err := g.head(ctx)
		return head >= block, err
	})
	if err != nil {
		return fmt.Errorf("wait for block %d: %w", block, err)
	}

	return nil
}
