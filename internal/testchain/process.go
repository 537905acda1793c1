package testchain

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/fusion-prime/escrow-relayer/internal/child"
	"github.com/fusion-prime/escrow-relayer/internal/port"
)

// startTimeout is how long a node may take until it answers: geth takes half a second, ten times
// that on a loaded machine.
const startTimeout = 5 * time.Minute

// process is a node that runs as a process of its own, in a folder of its own. It ends with this
// process, however that ends.
type process struct {
	options  Options
	accounts []Account
	client   *rpc.Client
	reserved *port.Reserved
	dir      string
	node     *child.Process

	mu sync.Mutex // one block at a time
}

// startProcess runs a program that serves HTTP and WebSocket at the address, and returns when it answers.
func startProcess(ctx context.Context, o Options, program string,
	args func(dir, host, port string) []string) (*process, error) {
	name := filepath.Base(program)
	p := &process{options: o, accounts: Accounts(o.Seed, o.Accounts)}
	var err error
	if p.reserved, err = port.Reserve(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}

	if p.dir, err = os.MkdirTemp("", "escrow-relayer-node-"); err != nil {
		return nil, errors.Join(fmt.Errorf("make the folder of %s: %w", name, err), p.Stop())
	}

	if p.node, err = child.Start(name, program, args(p.dir, "127.0.0.1", strconv.Itoa(p.reserved.Number)), os.Environ(),
		filepath.Join(p.dir, "log")); err != nil {
		return nil, errors.Join(err, p.Stop())
	}

	if err := p.answer(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w\n%s", name, err, p.log()), p.Stop())
	}

	return p, nil
}

// answer returns when the node answers.
func (p *process) answer(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	client, err := rpc.DialContext(ctx, p.HTTP())
	if err != nil {
		return err
	}

	p.client = client

	return p.poll(ctx, func() (bool, error) {
		var id hexutil.Big
		if err := client.CallContext(ctx, &id, "eth_chainId"); err != nil {
			return false, nil // not yet
		}

		if id.ToInt().Cmp(p.ChainID()) != 0 {
			return false, fmt.Errorf("another chain answers at %s: its id is %s", p.reserved.Addr(), id.ToInt())
		}

		return true, nil
	})
}

// poll asks again and again, since a process cannot tell, until the answer is yes, an error, or the process has ended.
func (p *process) poll(ctx context.Context, ask func() (bool, error)) error {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		if ok, err := ask(); ok || err != nil {
			return err
		}

		select {
		case <-ticker.C:
		case <-p.node.Exited():
			return errors.New("the node has ended")
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// log is the end of what the node printed.
func (p *process) log() []byte {
	text, _ := os.ReadFile(p.node.LogFile)
	return bytes.TrimSpace(text[max(0, len(text)-2000):])
}

func (p *process) HTTP() string              { return "http://" + p.reserved.Addr() }
func (p *process) WS() string                { return "ws://" + p.reserved.Addr() }
func (p *process) Client() *ethclient.Client { return ethclient.NewClient(p.client) }
func (p *process) ChainID() *big.Int         { return new(big.Int).SetUint64(p.options.ChainID) }
func (p *process) Accounts() []Account       { return p.accounts }

// Stop kills the node and removes its files.
func (p *process) Stop() error {
	if p.client != nil {
		p.client.Close()
	}

	if p.node != nil {
		p.node.Kill()
	}

	return errors.Join(p.reserved.Close(), os.RemoveAll(p.dir))
}

func (p *process) head(ctx context.Context) (uint64, error) {
	var n hexutil.Uint64
	if err := p.client.CallContext(ctx, &n, "eth_blockNumber"); err != nil {
		return 0, fmt.Errorf("read the head: %w", err)
	}

	return uint64(n), nil
}

func (p *process) call(ctx context.Context, method string, args ...any) error {
	if err := p.client.CallContext(ctx, nil, method, args...); err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}

	return nil
}
