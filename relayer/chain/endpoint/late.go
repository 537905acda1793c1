package endpoint

import (
	"errors"
	"sync"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// late says how long the beginning of an answer with logs is waited for. It may take nearly as long as
// Config.Timeout, but a connection that swallows requests is to be found out sooner: so it is
// quickTimeout, unless the last answer took half of that, or logs were late twice and the node answered
// something else between. Even then there is time left within 10 s, so that a node that hung is read from.
type late struct {
	mu     sync.Mutex
	slow   bool
	last   time.Time // when logs were late, and not answered since; zero: they were
	others time.Time // when anything was answered last
}

func (l *late) timeout(most time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	quick := min(most, quickTimeout)
	if l.slow {
		return max(most*4/5, quick)
	}

	return quick
}

// answered notes that any request was.
func (l *late) answered(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.others = now
}

// took notes how a request for logs ended, and after how long.
func (l *late) took(long time.Duration, err error, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.slow, l.last = long > quickTimeout/2, time.Time{}
	case errors.Is(err, rpc.ErrSlow):
		l.slow, l.last = !l.last.IsZero() && l.others.After(l.last), now
	}
}
