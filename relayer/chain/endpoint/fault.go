package endpoint

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// FaultKind names what a node did.
type FaultKind string

// The kinds of a Fault, as the table endpoint_faults has them.
const (
	Oversized FaultKind = "oversized" // an answer that no honest node gives to what was asked
	Lie       FaultKind = "lie"       // an answer that a proof refutes
)

// Fault is what a node did that no honest node does. The node is set aside until the fault is deleted
// from the database: others are asked, and alone it is asked on probation.
type Fault struct {
	Endpoint string // its name, without secrets
	Kind     FaultKind
	Evidence string // the answer, or what proves it wrong; without secrets, at most maxEvidence bytes
	Since    time.Time
	Stored   bool // it is in the database
}

// maxEvidence bounds Fault.Evidence, in bytes: a header with its receipts and logs as a proof needs them.
const maxEvidence = 256 << 10

// Accuse sets the node aside for a fault, and stores it (Config.Accused). err says what is
// wrong; evidence is what the node said, shortened here.
func (s *standing) Accuse(ctx context.Context, kind FaultKind, err error, evidence string) {
	if ctx.Err() != nil {
		return
	}

	evidence = strings.ToValidUTF8(strings.ReplaceAll(evidence, "\x00", ""), "")
	evidence = strings.ToValidUTF8(evidence[:min(len(evidence), maxEvidence)], "")
	f := Fault{Endpoint: s.cfg.Name, Kind: kind, Evidence: s.cfg.Secrets.Mask(evidence), Since: s.cfg.Now()}
	s.SetAside(&f)
	s.blame(ctx, s.cfg.Secrets.Error(err), time.Time{})
	if s.cfg.Accused != nil {
		s.cfg.Accused()
	}
}

// accuse accuses the node of an answer out of proportion to its request, or of a forgery, if that is what
// err says.
func (s *standing) accuse(ctx context.Context, err error) {
	if s.Fault() != nil {
		return
	}

	if errors.Is(err, rpc.ErrOversized) {
		s.Accuse(ctx, Oversized, err, err.Error())
	} else if f, is := errors.AsType[*Forgery](err); is {
		s.Accuse(ctx, Lie, err, f.What+"\n"+f.Evidence)
	}
}

// SetAside has the node used only while no other serves; nil: nothing is known against it.
func (s *standing) SetAside(f *Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.health.state
	known := s.health.fault != nil
	if f != nil && known && s.health.fault.Kind != f.Kind && !f.Stored {
		return // the first fault is stored before the next one counts
	}

	if s.health.fault = f; f == nil {
		if known {
			s.health.avoid = time.Time{}
		}

		return
	}

	if !known && s.health.become(lied) {
		s.changed(was, errors.New("set aside: "+string(f.Kind)+" answer: "+f.Evidence[:min(len(f.Evidence), maxShown)]))
	}
}

// maxShown bounds what of the evidence an operator sees in a log line, in bytes.
const maxShown = 200

// Fault is what the node is set aside for; nil: it is not.
func (s *standing) Fault() *Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.health.fault
}
