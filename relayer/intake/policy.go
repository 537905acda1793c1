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

	"github.com/ethereum/go-ethereum/common"

	"github.com/fusion-prime/escrow-relayer/relayer/command"
)

// Policy says who may ask for what. It is read once, at start.
type Policy struct {
	requesters map[common.Address][]grant
	senders    map[common.Address]bool // that anybody may ask
}

// grant allows some kinds of commands to one sender, with a value and a fee up to limits.
type grant struct {
	sender   common.Address
	kinds    []command.Kind
	maxValue *big.Int
	maxFee   *big.Int
}

// policyFile is the policy as the file has it.
type policyFile struct {
	Requesters []struct {
		Name    string         `json:"name"`
		Address common.Address `json:"address"`
		Allow   []grantEntry   `json:"allow"`
	} `json:"requesters"`
}

// grantEntry is a grant as the file has it.
type grantEntry struct {
	Sender   common.Address `json:"sender"`
	Kinds    []command.Kind `json:"kinds"`
	MaxValue string         `json:"max_value"` // wei, of create; missing: 0
	MaxFee   string         `json:"max_fee"`   // wei
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

	p := &Policy{requesters: map[common.Address][]grant{}, senders: map[common.Address]bool{}}
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

		var grants []grant
		for _, a := range r.Allow {
			grants = append(grants, a.grant(r.Address, say))
			p.senders[a.Sender] = true
		}

		p.requesters[r.Address] = grants
	}

	if err := errors.Join(errs...); err != nil {
		return nil, err
	}

	return p, nil
}

// grant reads what a requester is allowed.
func (a *grantEntry) grant(requester common.Address, say func(format string, args ...any)) (g grant) {
	g.sender, g.kinds = a.Sender, a.Kinds
	if a.Sender == (common.Address{}) {
		say("requester %s: a grant has no sender", requester)
	}

	if len(a.Kinds) == 0 {
		say("requester %s: the grant for %s has no kinds", requester, a.Sender)
	}

	for _, k := range a.Kinds {
		if !slices.Contains(command.Kinds, k) {
			say("requester %s: kind %q must be approve, release, refund or create", requester, k)
		}
	}

	var ok bool
	if g.maxValue, ok = command.ParseWei(cmp.Or(a.MaxValue, "0")); !ok {
		say("requester %s: max_value %q must be wei, as a decimal number in a string", requester, a.MaxValue)
	}

	if g.maxFee, ok = command.ParseWei(a.MaxFee); !ok || g.maxFee.Sign() == 0 {
		say("requester %s: max_fee %q must be wei, more than 0, as a decimal number in a string", requester, a.MaxFee)
	}

	return g
}

// knows says whether somebody may ask for anything at all.
func (p *Policy) knows(requester common.Address) bool {
	_, ok := p.requesters[requester]
	return ok
}

// Refuses says why somebody may not ask for a command; empty: they may.
func (p *Policy) Refuses(requester common.Address, c *command.Command) string {
	grants, ok := p.requesters[requester]
	if !ok {
		return fmt.Sprintf("the policy does not know %s, who signed it", requester)
	}

	why := fmt.Sprintf("the policy does not allow %s to ask sender %s to %s", requester, c.Sender, c.Kind)
	for _, g := range grants {
		switch {
		case g.sender != c.Sender || !slices.Contains(g.kinds, c.Kind):
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
