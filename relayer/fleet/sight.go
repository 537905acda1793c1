package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Sight is what a screen of one instance shows: the fleet as last read, and the instance itself.
type Sight struct {
	Read *Reading
	Self *Self
	Now  time.Time // by this process's clock
}

// Judge lists what is wrong, the worst first: Fleet.Judge plus what only this instance knows. While
// the database cannot be read, the fleet's problems are left out, since they are outdated.
func (s *Sight) Judge() []Problem {
	p := problems{}
	s.judgeSelf(&p)
	if !s.Read.At.IsZero() && s.Read.Err == nil {
		p = append(p, s.Read.Fleet.Problems...)
		s.judgePublishing(p)
		if behind := s.Self.Unverified(s.Read.Fleet.Chain.Verified); behind > LimitUnverified {
			p.add(Unverified, Warning, "look at the nodes: the second reading waits for them, or for the first",
				"the final blocks of %s were not read a second time: completeness is not checked", Age(behind))
		}
	}

	p.sort()

	return p
}

// effects are those of problems, in words.
var effects = map[effect]string{copes: "The fleet copes", delayed: "Events are delayed",
	wrong: "Events were published wrongly, or not", nothingStored: "Nothing new is stored",
	noAnswer: "The database does not answer"}

// Headline summarizes problems, the worst first, in one line: what happens to the events, and how
// soon to act. Empty without problems.
func Headline(all []Problem) string {
	if len(all) == 0 {
		return ""
	}

	worst := copes
	for _, p := range all {
		worst = max(worst, Kinds[p.Kind].effect)
	}

	switch what := effects[worst]; {
	case all[0].Severity == Critical:
		return what + ": act now"
	case all[0].Severity == Warning:
		return what + ": act today"
	case worst >= nothingStored:
		return what + ": this may end within seconds"
	}

	if !slices.ContainsFunc(all, func(p Problem) bool { return p.Kind != Believed && p.Kind != EndpointOut }) {
		return "All is stored and published; look at the endpoints"
	}

	return "The fleet is settling"
}

// judgeSelf judges what this instance lacks: its database, its session, its nodes, or the ability to store.
func (s *Sight) judgeSelf(p *problems) {
	i := s.Self
	switch {
	case errors.As(i.Database, new(*LockedError)): // why it cannot be read, too
		s.lasting(p, DatabaseRefuses, LimitDatabase, i.DatabaseSince, "this instance's database", i.Database)
	case s.Read.Err != nil && s.Read.At.IsZero():
		s.lasting(p, DatabaseGone, LimitDatabase, i.Started, "the fleet could not be read", s.Read.Err)
	case s.Read.Err != nil:
		s.lasting(p, DatabaseGone, LimitDatabase, s.Read.At, "the fleet is shown as it was "+s.ago(s.Read.At)+" ago",
			s.Read.Err)
	case i.Database != nil:
		s.lasting(p, DatabaseRefuses, LimitDatabase, i.DatabaseSince, "this instance's database", i.Database)
	}

	s.lasting(p, SessionGone, LimitDatabase, i.SessionSince, "this instance's database session", i.Session)
	s.lasting(p, OwnNode, LimitNode, i.NodeSince, "this instance's node", i.Node)
	s.lasting(p, Standing, Limit{Behind: 1, Critical: LimitStanding.Critical}, i.StandingSince,
		"this instance stores nothing new", i.Stuck)
	if i.Node != nil {
		return
	}

	if i.Trust == "believed" && len(i.Endpoints) > 1 {
		p.add(Believed, Warning, "look at the other endpoints: they are out, behind, or set aside",
			"the word of one endpoint says which blocks are the chain's, though %d are configured", len(i.Endpoints))
	}

	for _, e := range i.Endpoints {
		if !e.Up {
			p.add(EndpointOut, Notice, "look at its last error, and at the provider", "%s is out for this instance", e.Name)
		}
	}
}

// judgePublishing adds the reason why messages wait.
func (s *Sight) judgePublishing(p problems) {
	for i := range p {
		if err := s.Self.PublishError; p[i].Kind == OldOutbox && err != nil {
			p[i].Text += fmt.Sprintf("; the last error of publishing, %s ago here: %s", s.ago(s.Self.PublishErrorAt), err)
		}
	}
}

// lasting adds a state that began at a given time. Zero: unknown, which counts as long ago.
func (s *Sight) lasting(p *problems, kind string, l Limit, since time.Time, subject string, err error) {
	if err == nil {
		return
	}

	what, remedy := Advice(err)
	if kind == SessionGone {
		remedy = cmp.Or(remedy, "it rejoins once this has ended")
	}

	p.add(kind, l.Of(Age(max(1, s.Now.Sub(since)))), remedy, "%s: %s", subject, what)
}

func (s *Sight) ago(since time.Time) string { return Age(max(0, s.Now.Sub(since))).String() }

// Advice splits an error into what is wrong and the first step, which is empty where none is known.
func Advice(err error) (what, remedy string) {
	if e, ok := errors.AsType[interface {
		error
		Advice() (what, remedy string)
	}](err); ok {
		return e.Advice()
	}

	return fmt.Sprint(err), ""
}
