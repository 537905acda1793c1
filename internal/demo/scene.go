package demo

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// scene is the state of a demo.
type scene struct {
	o        Options
	lab      *lab.Lab  // of the first chain; it has what the chains share
	chains   []*chain  // that the relayers follow
	commands *commands // on the first chain; nil: there are none
	began    time.Time
	audited  bool   // read when everything has ended
	added    string // what came of the factory that was added; empty: none was. Read likewise

	mu      sync.Mutex
	procs   []*lab.Process               // by partition; the last one started
	ports   []string                     // by partition: a relayer that starts again is where it was
	owning  role                         // of the owner of the sender
	cause   string                       // the last thing that was done to an instance
	scraped map[*lab.Process]lab.Metrics // a dead process's counters count on
}

// chain is one that the relayers follow.
type chain struct {
	id      int64
	lab     *lab.Lab
	sim     *testchain.Sim
	traffic *testchain.Traffic
	audit   *lab.Audit // read when everything has ended

	leading role     // of the leader; guarded by the scene's mu, as slots
	slots   coverage //
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
	p, err := s.lab.RunChains(fmt.Sprint("relayer-", i), i, s.o.Instances, map[string]string{"PORT": s.ports[i]},
		s.chains[1].lab)
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

// Who was chosen last on a chain: the leader, and the owner of the sender.
const (
	readLeader = `select epoch, coalesce(instance_id, '') from leadership where chain_id = $1`
	readOwner  = `select epoch, coalesce(instance_id, '') from senders where chain_id = $1`
)

// chosen is the instance that was chosen last; empty: nobody was.
func (c *chain) chosen(ctx context.Context, read string) (id string, epoch int64, err error) {
	err = c.lab.DB.QueryRow(ctx, read, c.id).Scan(&epoch, &id)
	return id, epoch, err
}

// holder is the index of the process that was chosen last, or of the first.
func (s *scene) holder(ctx context.Context, c *chain, read string) int {
	id, _, err := c.chosen(ctx, read)
	if err != nil {
		return 0
	}

	return max(0, slices.IndexFunc(s.processes(), func(p *lab.Process) bool { return p.ID == id }))
}

// watch notes how long it takes from a blow to the next one in a role, who does what.
func (s *scene) watch(ctx context.Context, c *chain, r *role, read, does string) error {
	last := int64(-1)

	return lab.Every(ctx, 10*time.Millisecond, func() error {
		id, epoch, err := c.chosen(ctx, read)
		if err != nil || epoch == last {
			return nil //nolint:nilerr // the next look is soon
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

// strike says what is done to a process, and notes it for each role that the process has.
func (s *scene) strike(ctx context.Context, signal string, i int) {
	var roles []*role
	var has []string
	note := func(c *chain, r *role, read, what string) {
		if id, _, err := c.chosen(ctx, read); err == nil && id == s.process(i).ID {
			roles, has = append(roles, r), append(has, what)
		}
	}
	for _, c := range s.chains {
		note(c, &c.leading, readLeader, fmt.Sprintf("the leader of chain %d", c.id))
	}

	if s.commands != nil {
		note(s.chains[0], &s.owning, readOwner, "the owner of the sender")
	}

	what := fmt.Sprintf("%s to %s", signal, s.process(i).ID)
	s.say("%s, %s", what, strings.Join(has, " and "))
	s.blow(what, roles...)
}

// blow notes what is done to who has some roles. From this moment on the gaps count.
func (s *scene) blow(what string, roles ...*role) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cause = what
	for _, r := range roles {
		r.blow = moment{time.Now(), what}
	}
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
func (s *scene) cover(ctx context.Context, c *chain) error {
	return lab.Every(ctx, coverEvery, func() error {
		f, err := fleet.Read(ctx, c.lab.DB, c.id)
		if err != nil || f.Slots.Total == 0 {
			return nil //nolint:nilerr // the next look is soon
		}

		s.mu.Lock()
		gap, ended := c.slots.see(f.Slots.Unserved, time.Now(), cmp.Or(s.cause, "start"))
		s.mu.Unlock()
		if ended {
			s.say("every slot of chain %d is served again, %s later", c.id, gap.length.Round(coverEvery/2))
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
