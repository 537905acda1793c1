package demo

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

// Pace of the view: pictures on a terminal, lines elsewhere.
const (
	drawEvery  = 500 * time.Millisecond
	printEvery = 5 * time.Second
)

// lookTimeout bounds a look: the machine may be busy, and the demo is to end soon after it was told to.
const lookTimeout = 3 * time.Second

// lastMoments is how many of the things that happened a picture has.
const lastMoments = 6

// look is what is seen of the demo at a moment.
type look struct {
	clock    time.Duration
	url      string // of a status page
	chains   []chainLook
	counters map[string]int
	moments  []string
}

// chainLook is what is seen of a chain.
type chainLook struct {
	fleet     fleet.Fleet
	head      int64 // of the chain
	factories int
	received  map[string]int // messages, by type of event
}

// say notes what happens. It is printed at once, unless there is a picture that will have it.
func (s *scene) say(format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	s.mu.Lock()
	defer s.mu.Unlock()
	m := moment{time.Now(), what} // under the lock: what is printed is in the order of time
	s.moments = append(s.moments, m)
	if s.o.Size == nil {
		fmt.Fprintln(s.o.Out, s.line(m))
	}
}

func (s *scene) line(m moment) string { return clock(m.at.Sub(s.began)) + "  " + m.what }

func clock(d time.Duration) string { return fmt.Sprintf("%6.1fs", d.Seconds()) }

// show draws the fleet again and again on a terminal, the last time when ctx has ended; elsewhere
// it prints a line now and then.
func (s *scene) show(ctx context.Context) error {
	every := printEvery
	if s.o.Size != nil {
		every = drawEvery
	}

	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		if l, err := s.look(ctx); err == nil { // else the database has too much to do, and the next look is soon
			if s.o.Size != nil {
				s.draw(l)
			} else {
				s.print(l)
			}
		}

		if ctx.Err() != nil {
			return nil
		}

		select {
		case <-ctx.Done():
			if s.o.Size == nil {
				return nil
			}
		case <-ticker.C:
		}
	}
}

// print writes a look as a line per chain, with the time at which it is written.
func (s *scene) print(l *look) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.clock = time.Since(s.began)
	for i := range l.chains {
		fmt.Fprintln(s.o.Out, clock(l.clock)+"  "+l.chains[i].oneLine())
	}
}

func (s *scene) look(ctx context.Context) (*look, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout)
	defer cancel()
	l := &look{clock: time.Since(s.began)}
	for _, c := range s.chains {
		f, err := fleet.Read(ctx, c.lab.DB, c.id)
		if err != nil {
			return nil, err
		}

		factories, err := registry.Factories(ctx, c.lab.DB, c.id)
		if err != nil {
			return nil, err
		}

		head, err := c.lab.Head(ctx)
		if err != nil {
			return nil, err
		}

		seen := chainLook{fleet: f, head: int64(head), factories: len(factories), received: map[string]int{}}
		for _, m := range c.lab.Received.Messages() {
			seen.received[m.Attributes[message.AttrEventType]]++
		}

		l.chains = append(l.chains, seen)
	}

	l.counters = s.counters(ctx)
	for _, p := range s.processes() {
		if p.Running() {
			l.url = p.URL
			break
		}
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.moments[max(0, len(s.moments)-lastMoments):] {
		l.moments = append(l.moments, s.line(m))
	}

	return l, nil
}

func (c *chainLook) leader() string {
	if !c.fleet.Leader.Held {
		return "none"
	}

	return c.fleet.Leader.Instance
}

// lag is by how many blocks a cursor is behind what may be processed.
func (c *chainLook) lag(cursor int64) int64 {
	if cursor == 0 {
		return 0
	}

	return max(0, c.head-confirmations+1-cursor)
}

func (c *chainLook) published() (n int) {
	for _, count := range c.received {
		n += count
	}

	return n
}

func (c *chainLook) oneLine() string {
	f := &c.fleet

	var commands strings.Builder
	for i := range f.Senders {
		fmt.Fprintf(&commands, "  commands under way %d waiting %d", f.Senders[i].InFlight, f.Senders[i].Waiting)
	}

	return fmt.Sprintf("chain %d  relayers alive %d, leader %-10s slots served %d of %d, adopted %d  "+
		"block %d, behind by %d  factories %d  escrows %d  messages published %d, waiting %d", f.ChainID, f.Live(), c.leader(), f.Slots.Served,
		f.Slots.Total, f.Slots.Adopted, c.head, c.lag(f.Chain.LowestCursor), c.factories, f.Escrows.Registered(),
		c.published(), f.Outbox.Messages) + commands.String()
}

// picture is a look in several lines.
func (l *look) picture() (lines []string) {
	line := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	line("%s %s   in a browser: %s", text.Bold.Sprint("escrow relayer"), clock(l.clock), l.url)
	line("")
	line("  %-5s %-12s %-8s %5s %8s %8s %7s %7s %4s", "chain", "instance", "state", "slots", "adopted", "escrows",
		"head", "cursor", "lag")
	for i := range l.chains {
		c := &l.chains[i]
		for j := range c.fleet.Instances {
			in := &c.fleet.Instances[j]
			state, colour := string(in.State), text.FgGreen
			switch {
			case !in.Alive:
				colour = text.FgRed
			case in.Leader:
				state, colour = "leads", text.FgCyan
			}

			line("  %-5d %s %5d %8d %8d %7d %7d %4d", c.fleet.ChainID, colour.Sprintf("%-12s %-8s", in.ID, state), in.Slots,
				in.Adopted, in.Escrows, in.Head, in.Cursor, c.lag(in.Cursor))
		}
	}

	line("")
	line("  %-5s %-9s %8s %9s %8s %6s %9s %6s", "chain", "factories", "served", "unserved", "escrows", "active",
		"published", "outbox")
	received := map[string]int{}
	for i := range l.chains {
		c := &l.chains[i]
		f := &c.fleet
		unserved := fmt.Sprintf("%9d", f.Slots.Unserved)
		if f.Slots.Unserved > 0 {
			unserved = text.FgRed.Sprint(unserved)
		}

		line("  %-5d %-9d %8d %s %8d %6d %9d %6d", f.ChainID, c.factories, f.Slots.Served, unserved, f.Escrows.Registered(),
			f.Escrows.Active, c.published(), f.Outbox.Messages)
		for name, n := range c.received {
			received[name] += n
		}
	}

	var types []string
	for _, name := range config.DefaultEvents {
		types = append(types, fmt.Sprintf("%s %d", name, received[name]))
	}

	line("  %s", strings.Join(types, "  "))
	for i := range l.chains {
		for _, x := range l.chains[i].fleet.Senders {
			line("  sender     %s acts for %s: %d commands under way, %d waiting", x.Instance, x.Name, x.InFlight, x.Waiting)
		}
	}

	line("")
	for _, m := range l.moments {
		line("  %s", m)
	}

	return lines
}

// draw puts a look in the place of the last one. Lines that do not fit are cut: one that wraps
// would make the picture climb.
func (s *scene) draw(l *look) {
	width, height := s.o.Size()
	lines := l.picture()
	lines = lines[:min(len(lines), max(1, height-1))]
	var b strings.Builder
	if s.drawn > 0 {
		fmt.Fprintf(&b, "\r\x1b[%dA", s.drawn) // an echoed ^C has moved the cursor to the right
	}

	for _, line := range lines {
		b.WriteString(text.Trim(line, max(1, width)) + "\x1b[K\n")
	}

	b.WriteString("\x1b[J")
	s.drawn = len(lines)
	fmt.Fprint(s.o.Out, b.String())
}
