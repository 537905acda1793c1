package chain

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A name that leads to another machine, while the old one answers for ever and its chain stands still: new
// connections are made, without a restart.
func TestNameThatLeadsElsewhere(t *testing.T) {
	for _, kind := range []string{"http", "ws"} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				chain := newChain(1000, 1, 0)
				var p pipes
				old, at := p.node(t, chain)
				moved, to := p.node(t, chain)
				url := old.server.URL
				if kind == "ws" {
					url = old.ws()
				}

				old.head = 20
				s := start(t, Config{URLs: []string{url}, ChainID: 1, Finality: Latest, PollInterval: time.Second,
					Dial: p.dial})
				for head := uint64(20); head <= 40; head++ {
					old.set(func() { old.head = head })
					old.announce()
					await(t, s, func(v View) bool { return v.Head == head })
					<-time.After(time.Second)
				}

				p.mu.Lock()
				p.hosts[at.name] = to
				p.mu.Unlock()
				moved.set(func() { moved.head = 500 })
				<-time.After(2*time.Minute + 10*time.Second)
				require.EqualValues(t, 500, s.View().Head, "%+v", s.Endpoints())
			})
		})
	}
}
