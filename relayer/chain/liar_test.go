package chain

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/long"
	"github.com/fusion-prime/escrow-relayer/internal/race"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/endpoint"
)

// blockTime is between two blocks of the chain below, and settled how many lie on one that is published.
const blockTime, settled = 12 * time.Second, 12

// clocked is a chain whose blocks have the times of a bubble's clock and hash as Ethereum's do: block begun is the
// newest at once, and every second one has logs.
func clocked(begun, blocks uint64) *testChain {
	c := newChain(begun+blocks, 2, 0)
	first := time.Now().Add(-time.Duration(begun) * blockTime).Unix()
	for i := range c.headers {
		h := &c.headers[i]
		h.Time = uint64(first) + uint64(i)*uint64(blockTime/time.Second)
		for j := range c.logs[h.Hash] {
			c.logs[h.Hash][j].BlockTimestamp = h.Time
		}
	}

	c.seal()

	return c
}

// own is a liar's chain: the blocks of this one below a height, and from there up to another its own, which are valid
// in all that a hash proves, and each of which has an invented log.
func (c *testChain) own(from, to uint64) *testChain {
	f := &testChain{headers: slices.Clone(c.headers[:from]), logs: maps.Clone(c.logs), sealed: maps.Clone(c.sealed)}
	for n := from; n <= to; n++ {
		parent := f.headers[n-1]
		h := Header{Number: n, Time: parent.Time + 12}
		b, logs := sealBlock(&h, parent.Hash, []types.Log{{Address: emitter, Topics: []common.Hash{topicA, {0xee}},
			Data: []byte("invented"), BlockNumber: n, TxHash: common.Hash{0xee, byte(n), byte(n >> 8)}}})
		h.Hash, h.Parent, h.Bloom, h.Transactions = b.header.Hash(), parent.Hash, b.header.Bloom, len(b.transactions)
		for i := range logs {
			logs[i].BlockHash = h.Hash
		}

		for _, r := range b.receipts {
			r.BlockHash = h.Hash
			for _, l := range r.Logs {
				l.BlockHash = h.Hash
			}
		}

		f.headers, f.sealed[h.Hash], f.logs[h.Hash] = append(f.headers, h), b, logs
	}

	return f
}

// publisher reads as a watch does, and holds each block that it was given against the chain.
type publisher struct {
	t     *testing.T
	cfg   Config
	s     *Source
	stop  func()
	chain *testChain
	next  uint64
	at    common.Hash
}

// run starts a Source, as a process that begins with what the one before has stored.
func (p *publisher) run() { p.s, p.stop = p.source() }

// takeOver has a Source go on that has run beside this one, as a leader that takes over.
func (p *publisher) takeOver(by *Source, stop func()) {
	p.stop()
	p.s, p.stop = by, stop
}

func (p *publisher) source() (s *Source, stop func()) {
	p.cfg.Registerer = prometheus.NewRegistry()
	s = New(p.cfg)
	s.Demand([]string{"headers hash", "receipts prove", "transactions prove"})
	ctx, cancel := context.WithCancel(p.t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()

	return s, func() { cancel(); require.NoError(p.t, <-done) }
}

// publish reads what there is for a time.
func (p *publisher) publish(lasts time.Duration) {
	until := time.Now().Add(lasts)
	for time.Now().Before(until) {
		news := p.s.Changed()
		p.read()
		select {
		case <-news:
		case <-time.After(time.Second):
		}
	}
}

func (p *publisher) read() {
	for b, err := range p.s.Read(p.t.Context(), p.next, p.s.View().Target, filterA()) {
		if err != nil {
			return
		}

		if b.Parent != p.at && p.at != (common.Hash{}) {
			h, err := p.s.Canonical(p.t.Context(), p.next-1, p.at)
			require.True(p.t, err != nil || h.Hash == p.at, "a block of the chain is taken back for %s", h.Hash)

			return
		}

		require.True(p.t, slices.EqualFunc(p.chain.matching(b.From, b.To), b.Logs, SameLog), "blocks %d to %d", b.From, b.To)
		require.Equal(p.t, p.chain.headers[b.To].Hash, b.Last.Hash)
		p.next, p.at = b.To+1, b.Last.Hash
	}
}

// stage is a chain that goes on, a publisher, a liar and honest endpoints.
type stage struct {
	*publisher
	liar   *testNode
	honest []*testNode
	behind func(now uint64) uint64 // the liar's head; nil: it is as its chain says. Under the liar's lock
}

const stageBegun = 400

// raise starts it, the liar first in the list or last. Called in a bubble.
func raise(t *testing.T, honest int, last bool, cfg Config) *stage {
	t.Helper()
	chain := clocked(stageBegun, 400)
	var p pipes
	st := &stage{}
	var list []*testNode
	for range honest + 1 {
		n, _ := p.node(t, chain)
		n.receipts, n.head, n.finalized = true, stageBegun, stageBegun-64
		list = append(list, n)
	}

	st.liar, st.honest = list[0], list[1:]
	if last {
		st.liar, st.honest = list[honest], list[:honest]
	}

	for _, n := range list {
		cfg.URLs = append(cfg.URLs, n.server.URL)
	}

	cfg.ChainID, cfg.Confirmations, cfg.Dial, cfg.PollInterval = 1, settled, p.dial, time.Second
	cfg.Logger = slog.New(slog.DiscardHandler)
	st.publisher = &publisher{t: t, cfg: cfg, chain: chain, next: stageBegun - 20, at: chain.headers[stageBegun-21].Hash}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticks := time.NewTicker(blockTime)
		defer ticks.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticks.C:
			}

			for _, n := range list {
				n.set(func() {
					if n == st.liar && st.behind != nil {
						n.head, n.finalized = st.behind(st.now()), st.behind(st.now())-64
					} else if n.chain == chain {
						n.head, n.finalized = st.now(), st.now()-64
					} else if int(n.head)+1 < len(n.chain.headers) {
						n.head++
						n.finalized = n.head // it is a liar in all
					}
				})
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done; st.stop() })
	st.run()

	return st
}

// now is the newest block of the chain.
func (st *stage) now() uint64 {
	return uint64(time.Now().Unix()-int64(st.chain.headers[0].Time)) / uint64(blockTime/time.Second)
}

// lie puts the liar on a chain of its own, which begins so many blocks below the chain's head, and ends ahead of it.
func (st *stage) lie(depth, ahead int) {
	head := st.now()
	from := head - uint64(depth)
	top := max(from, uint64(int(head)+ahead))
	own := st.chain.own(from, top+100)
	st.liar.set(func() { st.liar.chain, st.liar.head, st.liar.finalized = own, top, top })
}

func (st *stage) repent() {
	st.liar.set(func() { st.liar.chain, st.liar.head, st.liar.finalized = st.chain, st.now(), st.now()-64 })
}

// What a liar with a chain of its own, valid in all that hashes prove, brings about: shorter, as long as the
// chain and longer, from the head, 12 blocks deep and below what is final, alone beside one, two and three honest
// endpoints, first and last in the list, with a restart and with a takeover while it lies, with a restart after it. It
// has nothing invented published and nothing taken back; beside two it delays nothing and is named with evidence; a
// minute after the lie all is published.
func TestLiarWithItsOwnChain(t *testing.T) {
	i, changes := 0, []string{"no restart", "restart", "takeover", "restart after it"}
	for a, ahead := range []int{-4, 0, 1, 14, 100, 1000} {
		for _, honest := range []int{1, 2, 3} {
			for d, depth := range []int{1, 13, 100} {
				i++
				last, change, finality := i%2 == 0, changes[(i+a)%len(changes)], []string{Confirmations, Finalized}[i/2%2]
				// A third of them has each two of the three beside each other.
				if !long.Tables && (a+honest+d)%3 > 0 || race.Detector && i%7 > 0 {
					continue
				}

				t.Run(fmt.Sprintf("%+d, from %d below, beside %d, last %t, %s, %s", ahead, depth, honest, last, change,
					finality), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						st := raise(t, honest, last, Config{Finality: finality})
						again := func(when string) {
							if change == when {
								st.stop()
								st.run()
							}
						}
						other, stop := st.s, func() {}
						if change == "takeover" {
							other, stop = st.source()
						}

						lag := uint64(settled)
						if finality == Finalized {
							lag = 64
						}

						st.publish(4 * time.Minute)
						require.GreaterOrEqual(t, st.next+lag+4, st.now(), "before the lie")
						st.lie(depth, ahead)
						st.publish(2 * time.Minute)
						again("restart")
						if change == "takeover" {
							st.takeOver(other, stop)
						}

						st.publish(4 * time.Minute)
						if honest > 1 {
							require.GreaterOrEqual(t, st.next+lag+4, st.now(), "two of three")
						}

						if honest > 1 {
							require.Len(t, st.s.Faults(), 1)
							require.Equal(t, st.s.nodes[slices.Index(st.cfg.URLs, st.liar.server.URL)].Name(), st.s.Faults()[0].Endpoint)
							require.Equal(t, endpoint.Lie, st.s.Faults()[0].Kind)
						} else {
							require.Empty(t, st.s.Faults())
						}

						st.repent()
						again("restart after it")
						st.publish(time.Minute)
						require.GreaterOrEqual(t, st.next+lag+4, st.now(), "a minute after the lie")
					})
				})
			}
		}
	}
}

// A head of 2^60, with a header that is valid and whose parent is shown, holds up nothing and leaves nothing behind.
func TestAbsurdHeadIsForgotten(t *testing.T) {
	for _, honest := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			st := raise(t, honest, false, Config{Finality: Confirmations})
			st.publish(4 * time.Minute)
			parent := Header{Number: 1<<60 - 1, Time: uint64(time.Now().Unix())}
			b, _ := sealBlock(&parent, common.Hash{1}, nil)
			parent.Hash = b.header.Hash()
			head := Header{Number: 1 << 60, Time: parent.Time}
			top, _ := sealBlock(&head, parent.Hash, nil)
			st.liar.set(func() {
				st.liar.lie = func(_ string, params []json.RawMessage) (any, error) {
					switch {
					case len(params) > 0 && string(params[0]) == `"latest"`:
						return top.json(false), nil
					case len(params) > 0 && string(params[0]) == `"`+parent.Hash.Hex()+`"`:
						return b.json(false), nil
					}

					return nil, nil
				}
			})
			st.publish(10 * time.Second)
			st.liar.set(func() { st.liar.lie = nil })
			st.publish(time.Minute)
			require.GreaterOrEqual(t, st.next+settled+4, st.now())
			require.NoError(t, st.s.Health())
		})
	}
}

// A provider that stands still or is an hour behind holds nothing up for longer than a few minutes; one that is three
// blocks behind delays nothing, and none of them is named. Beside a liar with a longer chain it takes the honest ones
// to go on.
func TestProviderThatLags(t *testing.T) {
	for name, behind := range map[string]func(now, began uint64) uint64{
		"stands": func(_, began uint64) uint64 { return began },
		"3":      func(now, _ uint64) uint64 { return now - 3 },
		"300":    func(now, _ uint64) uint64 { return now - 300 },
	} {
		for _, honest := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s, beside %d", name, honest), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					st := raise(t, honest, false, Config{Finality: Confirmations})
					st.publish(4 * time.Minute)
					began := st.now()
					st.liar.set(func() { st.behind = func(now uint64) uint64 { return behind(now, began) } })
					for range 15 {
						st.publish(time.Minute)
						if honest > 1 || name == "3" {
							require.GreaterOrEqual(t, st.next+settled+4, st.now())
						}
					}

					require.GreaterOrEqual(t, st.next+settled+4, st.now())
					require.Empty(t, st.s.Faults())
				})
			})
		}
	}
}
