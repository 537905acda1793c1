//go:build outage

package deploy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
)

// How Cloud Run keeps a process running, with deploy/terraform/services.tf.
const (
	failedLooks = 6           // at /healthz in a row, before the process is killed
	firstPause  = time.Second // before a restart; it doubles up to ten times this, until the process has lived that long
)

// supervised is a relayer that is started again whenever it ends or hangs, by a goroutine that ends
// with stop. Its methods may be called concurrently.
type supervised struct {
	id       string
	liveness time.Duration // between two looks at /healthz
	run      func() (*lab.Process, error)
	started  func(*lab.Process) // is told of each process, before it is ready
	cancel   context.CancelFunc
	done     chan struct{}

	// mu guards what follows. changed is closed and replaced with each change of down.
	mu      sync.Mutex
	current *lab.Process
	down    bool
	changed chan struct{}
	err     error
}

// supervise starts a relayer and keeps it running until stop.
func supervise(id string, liveness time.Duration, run func() (*lab.Process, error),
	started func(*lab.Process)) *supervised {
	ctx, cancel := context.WithCancel(context.Background())
	s := &supervised{id: id, liveness: liveness, run: run, started: started, cancel: cancel, done: make(chan struct{}),
		changed: make(chan struct{})}
	go s.keep(ctx)

	return s
}

// process is the one that runs now, or ran last; nil before the first.
func (s *supervised) process() *lab.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// keepDown kills the process and keeps it down, as scaling to zero without a clean stop would.
func (s *supervised) keepDown() {
	s.set(true)
	if p := s.process(); p != nil {
		p.Kill()
	}
}

// up lets it run again.
func (s *supervised) up() { s.set(false) }

// stop ends the process and its supervision. The error is of a start that failed.
func (s *supervised) stop() error {
	s.cancel()
	<-s.done
	return s.err
}

func (s *supervised) set(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *supervised) keep(ctx context.Context) {
	defer close(s.done)
	pause := firstPause
	for s.allowed(ctx) {
		begun := time.Now()
		p, err := s.run()
		if err != nil {
			s.err = fmt.Errorf("supervise %s: %w", s.id, err)
			return
		}

		if s.took(p) {
			s.watch(ctx, p)
		}

		p.Kill()
		if time.Since(begun) > 10*firstPause {
			pause = firstPause
		}

		wait(ctx, pause)
		pause = min(2*pause, 10*firstPause)
	}
}

// allowed waits until the process may run; false when ctx has ended.
func (s *supervised) allowed(ctx context.Context) bool {
	for ctx.Err() == nil {
		s.mu.Lock()
		down, changed := s.down, s.changed
		s.mu.Unlock()
		if !down {
			return true
		}

		select {
		case <-changed:
		case <-ctx.Done():
		}
	}

	return false
}

// took notes a new process; false when it must not run after all.
func (s *supervised) took(p *lab.Process) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = p
	s.started(p)

	return !s.down
}

// watch returns when the process has ended, ctx has, or too many looks in a row have failed.
func (s *supervised) watch(ctx context.Context, p *lab.Process) {
	ticker := time.NewTicker(s.liveness)
	defer ticker.Stop()
	failed := 0
	for failed < failedLooks {
		select {
		case <-ctx.Done():
			return
		case <-p.Exited():
			return
		case <-ticker.C:
		}

		failed++
		if s.healthy(ctx, p) == nil {
			failed = 0
		}
	}
}

func (s *supervised) healthy(ctx context.Context, p *lab.Process) error {
	ctx, cancel := context.WithTimeout(ctx, s.liveness)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL+"/healthz", nil)
	if err != nil {
		return err
	}

	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}

	return nil
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
