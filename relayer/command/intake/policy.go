package intake

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"os"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/fusion-prime/escrow-relayer/relayer/command"
)

// Policy lists requesters, what each may ask for, and how much at a time. It is read once, at start.
type Policy struct {
	requesters map[common.Address]requester
	senders    map[common.Address]bool // that anybody may ask
}

type requester struct {
	grants []grant
	open   int // commands without a final answer
}

// defaultOpen is how many commands of a requester may be open, unless the policy says otherwise: what waits is looked
// at again and again.
const defaultOpen = 1000

// maxLife is how far ahead a command may expire. What is answered can be forgotten once it has expired: the same
// command is not taken in again.
const maxLife = 7 * 24 * time.Hour

// grant allows some kinds of commands to one sender, with a value and a fee up to limits.
type grant struct {
	Sender   common.Address `json:"sender"`
	Kinds    []command.Kind `json:"kinds"`
	MaxValue string         `json:"max_value"` // wei, of create; missing: 0
	MaxFee   string         `json:"max_fee"`   // wei

	maxValue, maxFee *big.Int // the two as numbers
}

// policyFile is the policy as in the file.
type policyFile struct {
	Requesters []struct {
		Name    string         `json:"name"`
		Address common.Address `json:"address"`
		Allow   []grant        `json:"allow"`

		MaxOpen *int `json:"max_open"` // commands; missing: defaultOpen
	} `json:"requesters"`
}

// OpenPolicy reads a policy file.
func OpenPolicy(path string) (*Policy, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the policy file: %w", err)
	}

	p, err := ParsePolicy(content)
	if err != nil {
		return nil, fmt.Errorf("policy file %s: %w", path, err)
	}

	return p, nil
}

// ParsePolicy reads a policy, and says everything that is wrong with it.
func ParsePolicy(content []byte) (*Policy, error) {
	var f policyFile
	d := json.NewDecoder(bytes.NewReader(content))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return nil, fmt.Errorf("not a policy: %w", err)
	}

	p := &Policy{requesters: map[common.Address]requester{}, senders: map[common.Address]bool{}}
	var errs []error
	say := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(f.Requesters) == 0 {
		say("it names no requester: nobody could send a command")
	}

	for _, r := range f.Requesters {
		switch _, twice := p.requesters[r.Address]; {
		case r.Address == (common.Address{}):
			say("requester %q has no address", r.Name)
		case twice:
			say("requester %s is there twice", r.Address)
		case len(r.Allow) == 0:
			say("requester %s is allowed nothing", r.Address)
		}

		for i := range r.Allow {
			r.Allow[i].check(r.Address, say)
			p.senders[r.Allow[i].Sender] = true
		}

		open := defaultOpen
		if r.MaxOpen != nil {
			open = *r.MaxOpen
		}

		if open < 1 {
			say("requester %s: max_open %d must be at least 1", r.Address, open)
		}

		p.requesters[r.Address] = requester{r.Allow, open}
	}

	if err := errors.Join(errs...); err != nil {
		return nil, err
	}

	return p, nil
}

// check says what is wrong with a grant, and reads its amounts.
func (g *grant) check(requester common.Address, say func(format string, args ...any)) {
	if g.Sender == (common.Address{}) {
		say("requester %s: a grant has no sender", requester)
	}

	if len(g.Kinds) == 0 {
		say("requester %s: the grant for %s has no kinds", requester, g.Sender)
	}

	for _, k := range g.Kinds {
		if !slices.Contains(command.Kinds, k) {
			say("requester %s: kind %q must be approve, release, refund or create", requester, k)
		}
	}

	var ok bool
	if g.maxValue, ok = command.ParseWei(cmp.Or(g.MaxValue, "0")); !ok {
		say("requester %s: max_value %q must be wei, as a decimal number in a string", requester, g.MaxValue)
	}

	if g.maxFee, ok = command.ParseWei(g.MaxFee); !ok || g.maxFee.Sign() == 0 {
		say("requester %s: max_fee %q must be wei, more than 0, as a decimal number in a string", requester, g.MaxFee)
	}
}

// knows reports whether an account may ask for anything at all.
func (p *Policy) knows(requester common.Address) bool {
	_, ok := p.requesters[requester]
	return ok
}

// Refuses says why a requester may not ask for a command; empty: it may.
func (p *Policy) Refuses(requester common.Address, c *command.Command) string {
	known, ok := p.requesters[requester]
	if !ok {
		return fmt.Sprintf("the policy does not know %s, who signed it", requester)
	}

	why := fmt.Sprintf("the policy does not allow %s to ask sender %s to %s", requester, c.Sender, c.Kind)
	for _, g := range known.grants {
		switch {
		case g.Sender != c.Sender || !slices.Contains(g.Kinds, c.Kind):
		case c.Value().Cmp(g.maxValue) > 0:
			why = fmt.Sprintf("the policy allows a value of at most %s wei", g.maxValue)
		case c.MaxFee.Cmp(g.maxFee) > 0:
			why = fmt.Sprintf("the policy allows a max_fee of at most %s wei", g.maxFee)
		default:
			return ""
		}
	}

	return why
}
