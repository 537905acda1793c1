package testchain

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/fusion-prime/escrow-relayer/internal/port"
)

// startTimeout is how long a node may take until it answers: geth takes half a second, ten times
// that on a loaded machine.
const startTimeout = time.Minute

// process is a node that runs as a process of its own, in a folder of its own. It ends with this
// process, however that ends.
type process struct {
	options  Options
	accounts []Account
	client   *rpc.Client
	reserved *port.Reserved
	dir      string
	cmd      *exec.Cmd
	done     chan struct{} // closed when the process has ended
	waiter   sync.WaitGroup
	reaper   *exec.Cmd
	leash    *os.File // the reaper acts when this is closed

	mu sync.Mutex // one block at a time
}

// startProcess runs a program that serves HTTP and WebSocket at the address, and returns when it answers.
func startProcess(ctx context.Context, o Options, program string,
	args func(dir, host, port string) []string) (*process, error) {
	p := &process{options: o, accounts: Accounts(o.Seed, o.Accounts), done: make(chan struct{})}
	var err error
	if p.reserved, err = port.Reserve(); err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(program), err)
	}

	if p.dir, err = os.MkdirTemp("", "escrow-relayer-node-"); err != nil {
		return nil, fmt.Errorf("make the node's folder: %w", err)
	}

	if err := p.run(program, args(p.dir, "127.0.0.1", strconv.Itoa(p.reserved.Number))); err != nil {
		return nil, errors.Join(err, p.reserved.Close(), os.RemoveAll(p.dir))
	}

	if err := p.answer(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w\n%s", filepath.Base(program), err, p.log()), p.Stop())
	}

	return p, nil
}

func (p *process) run(program string, args []string) error {
	log, err := os.Create(filepath.Join(p.dir, "log"))
	if err != nil {
		return fmt.Errorf("make the node's log: %w", err)
	}

	p.cmd = exec.Command(program, args...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = p.dir, log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt from the terminal is for us
	if err := errors.Join(p.cmd.Start(), log.Close()); err != nil {
		return fmt.Errorf("start %s: %w", filepath.Base(program), err)
	}

	p.waiter.Go(func() {
		_ = p.cmd.Wait() // killed, or the log says why
		close(p.done)
	})
	if err := p.watch(); err != nil {
		return errors.Join(fmt.Errorf("start the process that ends the node: %w", err), p.kill())
	}

	return nil
}

// watch starts a process that kills the node when the leash is closed, which the kernel does when this process ends.
func (p *process) watch() error {
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}

	p.reaper = exec.Command("/bin/sh", "-c", `cat >/dev/null; kill -9 "$NODE"; rm -rf "$FOLDER"`,
		"escrow-relayer: cleans up after a node")
	p.reaper.Env = append(os.Environ(), "NODE="+strconv.Itoa(p.cmd.Process.Pid), "FOLDER="+p.dir)
	p.reaper.Stdin, p.reaper.SysProcAttr = read, &syscall.SysProcAttr{Setpgid: true}
	if err := errors.Join(p.reaper.Start(), read.Close()); err != nil {
		p.reaper = nil
		return errors.Join(err, write.Close())
	}

	p.leash = write

	return nil
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
		case <-p.done:
			return errors.New("the node has ended")
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// log is the end of what the node printed.
func (p *process) log() []byte {
	text, _ := os.ReadFile(filepath.Join(p.dir, "log"))
	return bytes.TrimSpace(text[max(0, len(text)-2000):])
}

func (p *process) HTTP() string        { return "http://" + p.reserved.Addr() }
func (p *process) WS() string          { return "ws://" + p.reserved.Addr() }
func (p *process) ChainID() *big.Int   { return new(big.Int).SetUint64(p.options.ChainID) }
func (p *process) Accounts() []Account { return p.accounts }

// Signal sends a signal to the node, such as SIGSTOP to make it hang and SIGCONT to wake it.
func (p *process) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// Stop kills the node and removes its files.
func (p *process) Stop() error {
	if p.client != nil {
		p.client.Close()
	}

	return p.kill()
}

// kill ends the node before the reaper, which must not find another process under its id.
func (p *process) kill() error {
	err := p.cmd.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}

	p.waiter.Wait()
	if p.reaper != nil {
		err = errors.Join(err, p.reaper.Process.Kill())
		_ = p.reaper.Wait() // says that it was killed
		err = errors.Join(err, p.leash.Close())
	}

	return errors.Join(err, p.reserved.Close(), os.RemoveAll(p.dir))
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
