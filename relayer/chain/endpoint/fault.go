package endpoint

import (
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

// accuse sets the node aside for an answer out of proportion to its request, or for a forgery, if that is what err
// says, and has that stored (Config.Accused).
func (n *Node) accuse(err error) {
	f := Fault{Endpoint: n.cfg.Name, Since: n.cfg.Now()}
	forgery, forged := errors.AsType[*Forgery](err)
	switch {
	case n.Fault() != nil:
		return
	case errors.Is(err, rpc.ErrOversized):
		f.Kind, f.Evidence = Oversized, err.Error()
	case forged:
		f.Kind, f.Evidence = Lie, forgery.What+"\n"+forgery.Evidence
	default:
		return
	}

	evidence := strings.ToValidUTF8(strings.ReplaceAll(f.Evidence, "\x00", ""), "")
	evidence = strings.ToValidUTF8(evidence[:min(len(evidence), maxEvidence)], "")
	f.Evidence = n.cfg.Secrets.Mask(evidence)
	n.SetAside(&f)
	if n.cfg.Accused != nil {
		n.cfg.Accused()
	}
}

// SetAside has the node used only while no other serves; nil: nothing is known against it.
func (n *Node) SetAside(f *Fault) {
	n.mu.Lock()
	defer n.mu.Unlock()
	known := n.health.fault
	if f != nil && known != nil && known.Kind != f.Kind && !f.Stored {
		return // the first fault is stored before the next one counts
	}

	switch n.health.fault = f; {
	case f == nil && known != nil:
		n.health.avoid = time.Time{}
	case f != nil && known == nil:
		n.become(lied, errors.New("set aside: "+string(f.Kind)+" answer: "+f.Evidence[:min(len(f.Evidence), maxShown)]))
	}
}

// maxShown bounds what of the evidence an operator sees in a log line, in bytes.
const maxShown = 200

// Fault is what the node is set aside for; nil: it is not.
func (n *Node) Fault() *Fault {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.health.fault
}
