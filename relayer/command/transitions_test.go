package command_test

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
)

// The database knows the states of the table of transitions, and those two that an older release writes.
func TestTheDatabaseKnowsTheStates(t *testing.T) {
	var text string
	require.NoError(t, testpg.Pool(t).QueryRow(t.Context(), `select pg_get_constraintdef(oid) from pg_constraint
		where conname = 'commands_state_check'`).Scan(&text))
	stored := []command.State{}
	for _, found := range regexp.MustCompile(`'(\w+)'`).FindAllStringSubmatch(text, -1) {
		if !slices.Contains([]string{"held", "assigned"}, found[1]) {
			stored = append(stored, command.State(found[1]))
		}
	}

	var known []command.State
	for from, all := range command.Transitions {
		known = append(known, from)
		for _, to := range all {
			require.Contains(t, command.Transitions, to)
			require.False(t, from.Final() && to.Final(), "%s to %s: a reorganisation is between them", from, to)
		}
	}

	require.ElementsMatch(t, known, stored)
}

// The model of a sender moves its commands as the table of transitions has it.
func TestTheModelMovesAsTheTableSays(t *testing.T) {
	model, err := os.ReadFile("send/model/send.pml")
	require.NoError(t, err)
	states := map[string][]command.State{"ACC": {command.Accepted}, "SENT": {command.Sent}, "DONE": {command.Done},
		"VOID": {command.Voided}, "GONE": {command.Expired, command.Cancelled}}
	moves := regexp.MustCompile(`move\(c, (\w+), (\w+)\)`).FindAllStringSubmatch(string(model), -1)
	require.GreaterOrEqual(t, len(moves), 4)
	for _, m := range moves {
		for _, from := range states[m[1]] {
			require.NotEmpty(t, states[m[2]], m[2])
			for _, to := range states[m[2]] {
				require.Contains(t, command.Transitions[from], to)
			}
		}
	}
}
