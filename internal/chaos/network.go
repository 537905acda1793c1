package chaos

import (
	"context"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
)

// nodes are the two endpoints in front of the chain. Each serves HTTP/1.1 and WebSocket, and HTTP/2 at another address.
type nodes struct {
	front        [2]*faults.Node
	http2        [2]*httptest.Server
	certificates string // file
}

func (n *nodes) open(chain *testchain.Sim, seed uint64, dir string) (err error) {
	var chains []byte
	for i := range n.front {
		if n.front[i], err = faults.NewNode(chain.HTTP(), chain.WS(), seed+uint64(i)); err != nil {
			return err
		}

		s := httptest.NewUnstartedServer(n.front[i])
		s.EnableHTTP2, s.Config.ErrorLog = true, log.New(io.Discard, "", 0)
		s.StartTLS()
		n.http2[i] = s
		chains = append(chains, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})...)
	}

	n.certificates = filepath.Join(dir, "nodes.pem")

	return os.WriteFile(n.certificates, chains, 0o600)
}

func (n *nodes) close() error {
	var errs []error
	for i := range n.front {
		if n.http2[i] != nil {
			n.http2[i].CloseClientConnections()
			n.http2[i].Close()
		}

		if n.front[i] != nil {
			errs = append(errs, n.front[i].Close())
		}
	}

	return errors.Join(errs...)
}

// urls are how an instance reaches both nodes. The number of the instance decides the protocols.
func (n *nodes) urls(i int) [2]string {
	a, b := n.front[0], n.front[1]
	return [][2]string{{a.WS(), n.http2[1].URL}, {n.http2[0].URL, b.HTTP()}, {b.WS(), a.WS()}}[i%3]
}

// network is what lies between an instance and what it depends on.
type network struct {
	database, pubsub *faults.TCP
	nodes            [2]*faults.TCP
	databaseURL      string
	rpcURLs          [2]string
}

// connect starts a proxy to each of the addresses.
func connect(database, pubsub string, rpc [2]string) (n *network, err error) {
	n = &network{}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	if n.database, n.databaseURL, err = faults.ProxyURL(database); err != nil {
		return n, err
	}

	if n.pubsub, err = faults.NewTCP(pubsub); err != nil {
		return n, err
	}

	for i, url := range rpc {
		if n.nodes[i], n.rpcURLs[i], err = faults.ProxyURL(url); err != nil {
			return n, err
		}
	}

	return n, nil
}

func (n *network) close() error {
	var errs []error
	for _, t := range []*faults.TCP{n.database, n.pubsub, n.nodes[0], n.nodes[1]} {
		if t != nil {
			errs = append(errs, t.Close())
		}
	}

	return errors.Join(errs...)
}

func (n *network) environ() map[string]string {
	return map[string]string{
		"DATABASE_URL": n.databaseURL, "PUBSUB_EMULATOR_HOST": n.pubsub.Addr(), "RPC_URLS": n.rpcURLs[0] + "," + n.rpcURLs[1],
	}
}

// Which proxies of an instance a fault is put into.
func toDatabase(n *network, _ Fault) []*faults.TCP { return []*faults.TCP{n.database} }
func toPubSub(n *network, _ Fault) []*faults.TCP   { return []*faults.TCP{n.pubsub} }
func toNodes(n *network, _ Fault) []*faults.TCP    { return n.nodes[:] }

func toANode(n *network, f Fault) []*faults.TCP {
	if f.Both {
		return n.nodes[:]
	}

	return n.nodes[f.N%2 : f.N%2+1]
}

// What a proxy does.
func cut(t *faults.TCP, _ Fault) (undo func() error)     { return t.Cut() }
func freeze(t *faults.TCP, _ Fault) (undo func() error)  { return t.Freeze() }
func slow(t *faults.TCP, _ Fault) (undo func() error)    { return t.Slow(dbDelay) }
func hold(t *faults.TCP, f Fault) (undo func() error)    { return t.Hold(f.Keep) }
func swallow(t *faults.TCP, f Fault) (undo func() error) { return t.Swallow(f.Keep) }

// disturb the network of an instance, or of all, for a time.
func disturb(hit func(*network, Fault) []*faults.TCP,
	begin func(*faults.TCP, Fault) func() error) func(*run, context.Context, Fault) error {
	return func(r *run, ctx context.Context, f Fault) error {
		r.mu.Lock()
		var undo []func() error
		for i, n := range r.network {
			if i == f.Who || f.Both && f.Kind != NodeSwallow {
				for _, t := range hit(n, f) {
					undo = append(undo, begin(t, f))
				}
			}
		}

		r.mu.Unlock()
		r.endure(ctx, f, "r"+strconv.Itoa(f.Who))
		var errs []error
		for _, u := range undo {
			errs = append(errs, u())
		}

		return errors.Join(errs...)
	}
}

// holdCommit holds one instance's next commit on its way to the server, and forwards it later, when the
// instance has gone on to something else.
func (r *run) holdCommit(ctx context.Context, f Fault) error {
	r.mu.Lock()
	n := r.network[f.Who]
	r.mu.Unlock()
	if n == nil {
		return nil
	}

	trap := n.database.Trap("commit\x00")
	defer trap.Release()
	bounded, cancel := context.WithTimeout(ctx, f.For)
	defer cancel()
	select {
	case <-trap.Caught():
		r.endure(ctx, f, "r"+strconv.Itoa(f.Who))
	case <-bounded.Done():
	}

	return nil
}
