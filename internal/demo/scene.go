package demo

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

// scene is the state of a demo.
type scene struct {
	o     Options
	lab   *lab.Lab
	began time.Time

	mu      sync.Mutex
	procs   []*lab.Process
	moments []moment
	gaps    []gap
	blow    moment // the last thing that was done to a leader
	drawn   int    // lines on the terminal that the next picture replaces
}

type moment struct {
	at   time.Time
	what string
}

// gap is a time without a leader.
type gap struct {
	cause  string
	length time.Duration
	next   string
	epoch  int64
}

// say notes what happens; elsewhere than on a terminal it is printed at once.
func (s *scene) say(format string, args ...any) {
	m := moment{time.Now(), fmt.Sprintf(format, args...)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moments = append(s.moments, m)
	if !s.o.Terminal || s.drawn == 0 {
		fmt.Fprintf(s.o.Out, "%s  %s\n", s.clock(m.at), m.what)
	}
}

// mark notes what is done to a leader, from which moment on the gap counts.
func (s *scene) mark(what string) {
	s.say("%s", what)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blow = moment{time.Now(), what}
}

func (s *scene) clock(t time.Time) string { return fmt.Sprintf("%5.1fs", t.Sub(s.began).Seconds()) }

func (s *scene) leaderGaps() []gap {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.gaps)
}

// watchLeader notes how long it takes from a blow to the next term.
func (s *scene) watchLeader(ctx context.Context) error {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	last := int64(-1)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		var epoch int64
		var id string
		if err := s.lab.DB.QueryRow(ctx, `select epoch, coalesce(instance_id, '') from leadership`).Scan(&epoch, &id); err != nil || epoch == last {
			continue
		}
		if last >= 0 {
			s.mu.Lock()
			g := gap{cause: s.blow.what, length: time.Since(s.blow.at), next: id, epoch: epoch}
			first := s.blow.what == ""
			if !first {
				s.gaps = append(s.gaps, g)
				s.blow = moment{}
			}
			s.mu.Unlock()
			if !first {
				s.say("%s leads, %s later (epoch %d)", id, g.length.Round(time.Millisecond), epoch)
			}
		}
		last = epoch
	}
}

// show draws the fleet, twice a second on a terminal, elsewhere a line every five seconds.
func (s *scene) show(ctx context.Context) error {
	every := 5 * time.Second
	if s.o.Terminal {
		every = 500 * time.Millisecond
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		f, err := fleet.Read(ctx, s.lab.DB, s.lab.Chain.ChainID().Int64())
		if err != nil {
			continue // the database has just been asked for too much, or is being closed
		}
		if s.o.Terminal {
			s.draw(ctx, &f)
			continue
		}
		fmt.Fprintf(s.o.Out, "%s  leader %-10s alive %d  slots %d/%d adopted %d  head %d cursor %d  escrows %d  received %d  outbox %d\n", s.clock(time.Now()), leader(&f),
			f.Live(), f.Slots.Served, f.Slots.Total, f.Slots.Adopted, f.Chain.Head, f.Chain.LowestCursor, f.Escrows.Registered(), s.lab.Received.Len(), f.Outbox.Messages)
	}
}

func leader(f *fleet.Fleet) string {
	if !f.Leader.Held {
		return "none"
	}
	return f.Leader.Instance
}

func (s *scene) draw(ctx context.Context, f *fleet.Fleet) {
	head, _ := s.lab.Head(ctx)
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\x1b[K\n", args...) }
	line("\x1b[1mescrow relayer\x1b[0m  %s   block %d   leader \x1b[1m%s\x1b[0m (epoch %d)", s.clock(time.Now()), head, leader(f), f.Leader.Epoch)
	line("")
	line("  %-12s %-10s %6s %8s %8s %8s %6s", "instance", "state", "slots", "adopted", "escrows", "cursor", "lag")
	for _, i := range f.Instances {
		state := string(i.State)
		if i.Leader {
			state = "leads"
		}
		lag := int64(0)
		if i.Cursor > 0 {
			lag = max(0, int64(head)-int64(s.lab.Confirmations)-i.Cursor+1)
		}
		colour := "\x1b[32m"
		if !i.Alive {
			colour = "\x1b[31m"
		}
		line("  %s%-12s %-10s\x1b[0m %6d %8d %8d %8d %6d", colour, i.ID, state, i.Slots, i.Adopted, i.Escrows, i.Cursor, lag)
	}
	line("")
	counts := map[string]int{}
	messages := s.lab.Received.Messages()
	for _, m := range messages {
		counts[m.Attributes[message.AttrEventType]]++
	}
	line("  slots     %d of %d served, %d adopted, %d unserved", f.Slots.Served, f.Slots.Total, f.Slots.Adopted, f.Slots.Unserved)
	line("  published %d: EscrowDeployed %d, Approved %d, EscrowReleased %d, EscrowRefunded %d", len(messages), counts["EscrowDeployed"], counts["Approved"], counts["EscrowReleased"], counts["EscrowRefunded"])
	line("  outbox    %d, duplicates suppressed %d", f.Outbox.Messages, int(s.counters(ctx)["event_deduplication_hits"]))
	line("")
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.moments[max(0, len(s.moments)-6):] {
		line("  %s  %s", s.clock(m.at), m.what)
	}
	if s.drawn > 0 {
		fmt.Fprintf(s.o.Out, "\x1b[%dA", s.drawn)
	}
	fmt.Fprint(s.o.Out, b.String(), "\x1b[J")
	s.drawn = strings.Count(b.String(), "\n")
}

// counters sums some counters over the living relayers.
func (s *scene) counters(ctx context.Context) map[string]float64 {
	sum := map[string]float64{"event_deduplication_hits": 0, "relayer_republished_total": 0}
	for _, p := range s.processes() {
		if !p.Running() {
			continue
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL+"/metrics", nil)
		if err != nil {
			continue
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			continue
		}
		lines := bufio.NewScanner(resp.Body)
		for lines.Scan() {
			name, value, _ := strings.Cut(lines.Text(), " ")
			if _, ok := sum[name]; ok {
				n, _ := strconv.ParseFloat(value, 64)
				sum[name] += n
			}
		}
		resp.Body.Close()
	}
	return sum
}
