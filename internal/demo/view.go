package demo

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

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
const lastMoments = 7

// look is what is seen of the demo at a moment.
type look struct {
	clock    time.Duration
	url      string // of a status page
	fleet    fleet.Fleet
	head     int64          // of the chain
	received map[string]int // messages, by type of event
	counters map[string]int
	moments  []string
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

// print writes a look as a line, with the time at which it is written.
func (s *scene) print(l *look) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.clock = time.Since(s.began)
	fmt.Fprintln(s.o.Out, l.oneLine())
}

func (s *scene) look(ctx context.Context) (*look, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout)
	defer cancel()
	f, err := fleet.Read(ctx, s.lab.DB, s.lab.Chain.ChainID().Int64())
	if err != nil {
		return nil, err
	}

	head, err := s.lab.Head(ctx)
	if err != nil {
		return nil, err
	}

	l := &look{clock: time.Since(s.began), fleet: f, head: int64(head), received: map[string]int{},
		counters: s.counters(ctx)}
	for _, m := range s.lab.Received.Messages() {
		l.received[m.Attributes[message.AttrEventType]]++
	}

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

func (l *look) leader() string {
	if !l.fleet.Leader.Held {
		return "none"
	}

	return l.fleet.Leader.Instance
}

// lag is by how many blocks a cursor is behind what may be processed.
func (l *look) lag(cursor int64) int64 {
	if cursor == 0 {
		return 0
	}

	return max(0, l.head-confirmations+1-cursor)
}

func (l *look) published() (n int) {
	for _, c := range l.received {
		n += c
	}

	return n
}

func (l *look) oneLine() string {
	f := &l.fleet

	var commands strings.Builder
	for i := range f.Senders {
		fmt.Fprintf(&commands, "  commands under way %d waiting %d", f.Senders[i].InFlight, f.Senders[i].Waiting)
	}

	return fmt.Sprintf("%s  leader %-10s alive %d  slots %d/%d adopted %d  head %d cursor %d lag %d  escrows %d  published %d  outbox %d", clock(l.clock), l.leader(), f.Live(),
		f.Slots.Served, f.Slots.Total, f.Slots.Adopted, l.head, f.Chain.LowestCursor, l.lag(f.Chain.LowestCursor),
		f.Escrows.Registered(), l.published(), f.Outbox.Messages) + commands.String()
}

// picture is a look in several lines.
func (l *look) picture() (lines []string) {
	line := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	f := &l.fleet
	line("%s %s   block %d   leader %s (epoch %d)", text.Bold.Sprint("escrow relayer"), clock(l.clock), l.head,
		text.Bold.Sprint(l.leader()), f.Leader.Epoch)
	line("  in a browser: %s", l.url)
	line("")
	line("  %-12s %-8s %5s %8s %8s %7s %7s %4s", "instance", "state", "slots", "adopted", "escrows", "head",
		"cursor", "lag")
	for i := range f.Instances {
		in := &f.Instances[i]
		state, colour := string(in.State), text.FgGreen
		switch {
		case !in.Alive:
			colour = text.FgRed
		case in.Leader:
			state, colour = "leads", text.FgCyan
		}

		line("  %s %5d %8d %8d %7d %7d %4d", colour.Sprintf("%-12s %-8s", in.ID, state), in.Slots, in.Adopted, in.Escrows,
			in.Head, in.Cursor, l.lag(in.Cursor))
	}

	line("")
	slots := fmt.Sprintf("%d of %d served, %d adopted, %d unserved", f.Slots.Served, f.Slots.Total, f.Slots.Adopted,
		f.Slots.Unserved)
	if f.Slots.Unserved > 0 {
		slots = text.FgRed.Sprint(slots)
	}

	line("  slots      %s", slots)
	line("  escrows    %d registered, %d active", f.Escrows.Registered(), f.Escrows.Active)
	line("  published  %d, %d in the outbox, %d read twice and stored once", l.published(), f.Outbox.Messages,
		l.counters[suppressed])
	var types []string
	for _, name := range config.DefaultEvents {
		types = append(types, fmt.Sprintf("%s %d", name, l.received[name]))
	}

	line("  %s", strings.Join(types, "  "))
	for i := range f.Senders {
		x := &f.Senders[i]
		line("  sender     %s acts for %s: %d commands under way, %d waiting", x.Instance, x.Name, x.InFlight, x.Waiting)
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
