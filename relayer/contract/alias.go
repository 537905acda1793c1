package contract

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// interpreted are the names of the events that the relayer interprets.
var interpreted = []string{Deployed, Created, Approved, ArbiterChanged, Released, Refunded}

// alias makes an event of an ABI another layout of one that the relayer interprets.
type alias struct {
	means    string // one of interpreted
	argument string // of EscrowDeployed: which argument has the escrow; else empty
	used     bool
}

var aliasForm = regexp.MustCompile(`^([A-Za-z_$][A-Za-z0-9_$]*)(?:\(([A-Za-z_$][A-Za-z0-9_$]*)\))?=([A-Za-z]+)$`)

// parseAliases reads THEIRS=OURS, and THEIRS(ARGUMENT)=EscrowDeployed, by their name.
func parseAliases(texts []string) (map[string]*alias, error) {
	aliases := map[string]*alias{}
	for _, text := range texts {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}

		m := aliasForm.FindStringSubmatch(text)
		switch {
		case m == nil || (m[2] != "") != (m[3] == Deployed):
			return nil, fmt.Errorf("EVENT_ALIASES: %q is neither THEIRS=OURS nor THEIRS(ARGUMENT)=%s, where ARGUMENT is "+
				"the address of what was deployed", text, Deployed)
		case !slices.Contains(interpreted, m[3]):
			return nil, fmt.Errorf("EVENT_ALIASES: %s of %q is not one of %s", m[3], text,
				strings.Join(interpreted, ", "))
		case aliases[m[1]] != nil:
			return nil, fmt.Errorf("EVENT_ALIASES: %s has two meanings", m[1])
		}

		aliases[m[1]] = &alias{means: m[3], argument: m[2]}
	}

	return aliases, nil
}

// meaning is the name by which the relayer knows an event of an ABI, and the argument of EscrowDeployed that has the
// escrow.
func (a *ABI) meaning(theirs string) (name, argument string) {
	if alias := a.aliases[theirs]; alias != nil {
		return alias.means, alias.argument
	}

	return theirs, "escrow"
}

// Aliased reports whether an event of the ABIs has another name than the relayer's, so that its contracts are others
// than those which commands call.
func (a *ABI) Aliased() bool { return len(a.aliases) > 0 }
