package demo

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// scene is the state of a demo.
type scene struct {
	o        Options
	lab      *lab.Lab
	commands *commands // nil: there are none
	began    time.Time
	audited  bool // read when everything has ended

	mu      sync.Mutex
	procs   []*lab.Process // by partition; the last one started
	moments []moment
	ports   []string // by partition: a relayer that starts again is where it was
	leading role     // of the leader
	owning  role     // of the owner of the sender
	slots   coverage
	cause   string                       // the last thing that was done to an instance
	scraped map[*lab.Process]lab.Metrics // a dead process's counters count on
	drawn   int                          // lines on the terminal that the next picture replaces
}

type moment struct {
	at   time.Time
	what string
}

// role is what one instance has at a time, and when nobody had it.
type role struct {
	gaps []gap
	blow moment // the last thing that was done to who has it
}

// gap is a time without anybody in a role.
type gap struct {
	cause  string
	length time.Duration
	next   string
	epoch  int64
}

func (s *scene) start(i int) error {
	p, err := s.lab.Run(fmt.Sprint("relayer-", i), i, s.o.Instances, map[string]string{"PORT": s.ports[i]})
	if err != nil {
		return err
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if i < len(s.procs) {
		s.procs[i] = p
	} else {
		s.procs = append(s.procs, p)
	}

	return nil
}

func (s *scene) processes() []*lab.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.procs)
}

func (s *scene) process(i int) *lab.Process { return s.processes()[i] }

// Who was chosen last: the leader, and the owner of the sender.
const (
	readLeader = `select epoch, coalesce(instance_id, '') from leadership`
	readOwner  = `select epoch, coalesce(instance_id, '') from senders`
)

// holder is the index of the process that was chosen last, or of the first.
func (s *scene) holder(ctx context.Context, read string) int {
	var epoch int64
	var id string
	if err := s.lab.DB.QueryRow(ctx, read).Scan(&epoch, &id); err != nil {
		return 0
	}

	return max(0, slices.IndexFunc(s.processes(), func(p *lab.Process) bool { return p.ID == id }))
}

// watch notes how long it takes from a blow to the next one in a role, who does what.
func (s *scene) watch(ctx context.Context, r *role, read, does string) error {
	last := int64(-1)

	return lab.Every(ctx, 10*time.Millisecond, func() error {
		var epoch int64
		var id string
		if found := s.lab.DB.QueryRow(ctx, read).Scan(&epoch, &id) == nil; !found || epoch == last {
			return nil // the next look is soon
		}

		if g, struck := s.parry(r, id, epoch); struck && last >= 0 {
			s.say("%s %s, %s later (epoch %d)", id, does, g.length.Round(time.Millisecond), epoch)
		} else if last >= 0 {
			s.say("%s %s (epoch %d)", id, does, epoch)
		}

		last = epoch

		return nil
	})
}

// strike notes what is done to who has a role, from which moment on the gap counts.
func (s *scene) strike(r *role, what string) {
	s.say("%s", what)
	s.mu.Lock()
	defer s.mu.Unlock()
	r.blow, s.cause = moment{time.Now(), what}, what
}

// parry ends the gap that a blow has made, if there was one.
func (s *scene) parry(r *role, next string, epoch int64) (g gap, struck bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.blow.what == "" {
		return gap{}, false
	}

	g = gap{cause: r.blow.what, length: time.Since(r.blow.at), next: next, epoch: epoch}
	r.gaps, r.blow = append(r.gaps, g), moment{}

	return g, true
}

func (s *scene) gaps(r *role) []gap {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(r.gaps)
}

// coverage is how long slots were without an instance that serves them.
type coverage struct {
	since time.Time // of the interval that lasts; zero: every slot is served
	most  int       // slots at once, in that interval
	gaps  []unserved
}

// unserved is an interval in which some slots were served by nobody.
type unserved struct {
	cause  string
	length time.Duration
	slots  int
}

// coverEvery is how often the slots are looked at, and so how exactly an interval is known.
const coverEvery = 200 * time.Millisecond

// cover notes for how long slots are unserved. An escrow's events wait for so long.
func (s *scene) cover(ctx context.Context) error {
	return lab.Every(ctx, coverEvery, func() error {
		f, err := fleet.Read(ctx, s.lab.DB, s.lab.Chain.ChainID().Int64())
		if err != nil || f.Slots.Total == 0 {
			return nil //nolint:nilerr // the next look is soon
		}

		s.mu.Lock()
		gap, ended := s.slots.see(f.Slots.Unserved, time.Now(), s.cause)
		s.mu.Unlock()
		if ended {
			s.say("every slot is served again, %s later", gap.length.Round(coverEvery/2))
		}

		return nil
	})
}

// see takes a look at how many slots are unserved. An interval that ends is returned.
func (c *coverage) see(n int, now time.Time, cause string) (gap unserved, ended bool) {
	switch {
	case n > 0 && c.since.IsZero():
		c.since, c.most = now, n
	case n > 0:
		c.most = max(c.most, n)
	case !c.since.IsZero():
		gap = unserved{cause, now.Sub(c.since), c.most}
		c.gaps, c.since, c.most = append(c.gaps, gap), time.Time{}, 0

		return gap, true
	}

	return gap, false
}

// The counters of relayers that are shown.
const (
	suppressed  = "event_deduplication_hits"
	republished = "relayer_republished_total"
)

// counters sums the counters over all processes there were, as they were last seen.
func (s *scene) counters(ctx context.Context) map[string]int {
	for _, p := range s.processes() {
		if !p.Running() {
			continue
		}

		once, cancel := context.WithTimeout(ctx, time.Second)
		seen, err := p.Metrics(once)
		cancel()
		if err == nil {
			s.mu.Lock()
			s.scraped[p] = seen
			s.mu.Unlock()
		}
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	sum := map[string]int{}
	for _, seen := range s.scraped {
		sum[suppressed] += int(seen.Sum(suppressed))
		sum[republished] += int(seen.Sum(republished))
	}

	return sum
}
