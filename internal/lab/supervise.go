package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// Supervision says how a platform keeps a process running. The zero value is Cloud Run's with
// deploy/terraform/services.tf.
type Supervision struct {
	Liveness time.Duration // between two looks at /healthz; zero: 10 s
	Failures int           // looks in a row that fail before the process is killed; zero: 6
	// before a restart; it doubles up to ten times this, until the process has lived that long; zero:
	// 1 s
	Backoff time.Duration
	// Started is told of each process, before it is ready. Nil: nobody.
	Started func(*Process)
	// Others are chains that the process follows too.
	Others []*Lab
}

// Supervised is a relayer that is started again whenever it ends or hangs, by a goroutine that ends
// with Stop. Its methods may be called concurrently.
type Supervised struct {
	ID   string
	o    Supervision
	run  func() (*Process, error)
	stop context.CancelFunc
	done chan struct{}

	// mu guards what follows. changed is closed and replaced with each change of down.
	mu      sync.Mutex
	current *Process
	down    bool
	changed chan struct{}
	err     error
}

// Supervise starts a relayer and keeps it running until Stop, or until the lab is closed.
func (l *Lab) Supervise(id string, number, total int, env map[string]string, o Supervision) *Supervised {
	o.Liveness = cmp.Or(o.Liveness, 10*time.Second)
	o.Failures = cmp.Or(o.Failures, 6)
	o.Backoff = cmp.Or(o.Backoff, time.Second)
	ctx, stop := context.WithCancel(context.Background())
	s := &Supervised{ID: id, o: o, stop: stop, done: make(chan struct{}), changed: make(chan struct{})}
	s.run = func() (*Process, error) {
		if len(o.Others) > 0 {
			return l.RunChains(id, number, total, env, o.Others...)
		}

		return l.Run(id, number, total, env)
	}
	l.later(s.Stop)
	go s.keep(ctx)

	return s
}

// Process is the one that runs now, or ran last; nil before the first.
func (s *Supervised) Process() *Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// Down kills the process and keeps it down, as scaling to zero without a clean stop would.
func (s *Supervised) Down() {
	s.set(true)
	if p := s.Process(); p != nil {
		p.Kill()
	}
}

// Up lets it run again.
func (s *Supervised) Up() { s.set(false) }

// Stop ends the process and its supervision. The error is of a start that failed.
func (s *Supervised) Stop() error {
	s.stop()
	<-s.done
	return s.err
}

func (s *Supervised) set(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Supervised) keep(ctx context.Context) {
	defer close(s.done)
	pause := s.o.Backoff
	for s.allowed(ctx) {
		begun := time.Now()
		p, err := s.run()
		if err != nil {
			s.err = fmt.Errorf("supervise %s: %w", s.ID, err)
			return
		}

		if s.took(p) {
			s.watch(ctx, p)
		}

		p.Kill()

		if time.Since(begun) > 10*s.o.Backoff {
			pause = s.o.Backoff
		}

		wait(ctx, pause)
		pause = min(2*pause, 10*s.o.Backoff)
	}
}

// allowed waits until the process may run; false when ctx has ended.
func (s *Supervised) allowed(ctx context.Context) bool {
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
func (s *Supervised) took(p *Process) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = p
	if s.o.Started != nil {
		s.o.Started(p)
	}

	return !s.down
}

// watch returns when the process has ended, ctx has, or too many looks in a row have failed.
func (s *Supervised) watch(ctx context.Context, p *Process) {
	ticker := time.NewTicker(s.o.Liveness)
	defer ticker.Stop()
	failed := 0
	for failed < s.o.Failures {
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

func (s *Supervised) healthy(ctx context.Context, p *Process) error {
	ctx, cancel := context.WithTimeout(ctx, s.o.Liveness)
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
