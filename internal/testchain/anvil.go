package testchain

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/ethereum/go-ethereum/common/hexutil"
)

// anvilVersion in the npm registry.
const anvilVersion = "1.7.1"

// Anvil is Foundry's node, written in Rust: an implementation of the chain that shares nothing with geth.
type Anvil struct{ *process }

// StartAnvil starts anvil, after installing it the first time with npm. It fails with
// exec.ErrNotFound where there is no npm.
func StartAnvil(ctx context.Context, o Options) (*Anvil, error) {
	arch := runtime.GOOS + "-" + runtime.GOARCH // as npm's package calls it
	program, err := cached(ctx, "anvil-"+anvilVersion, func(dir string) error {
		// Scripts off: they would fetch what the package of the platform has.
		cmd := exec.CommandContext(ctx, "npm", "install", "--prefix", dir, "--no-save", "--no-audit", "--no-fund",
			"--ignore-scripts", "@foundry-rs/anvil@"+anvilVersion)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("install anvil: %w\n%s", err, out)
		}

		return nil
	}, filepath.Join("node_modules", "@foundry-rs", "anvil-"+arch, "bin", "anvil"))
	if err != nil {
		return nil, err
	}

	o = o.withDefaults()
	p, err := startProcess(ctx, o, program, func(_, host, port string) []string {
		args := []string{"--host", host, "--port", port, "--chain-id", strconv.FormatUint(o.ChainID, 10), "--gas-limit",
			"60000000", "--accounts", "1"}
		if o.Interval > 0 {
			args = append(args, "--block-time", strconv.Itoa(int(o.Interval/time.Second)))
		}

		return args
	})
	if err != nil {
		return nil, err
	}

	a := &Anvil{p}
	for _, account := range a.accounts {
		if err := a.call(ctx, "anvil_setBalance", account.Address, (*hexutil.Big)(endowment)); err != nil {
			return nil, errors.Join(fmt.Errorf("fund %s: %w", account.Address, err), a.Stop())
		}
	}

	return a, nil
}

// Mine makes n blocks.
func (a *Anvil) Mine(ctx context.Context, n int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.call(ctx, "anvil_mine", hexutil.Uint64(n))
}
