package command_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
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
	for _, x := range command.Transitions {
		known = append(known, x.To)
		require.False(t, x.From != "" && x.From.Final() && x.To.Final(), "%+v: a reorganisation is between them", x)
	}

	slices.Sort(known)
	require.ElementsMatch(t, slices.Compact(known), stored)
}

// The table of transitions names each statement that gives a command a state.
func TestTheTableNamesTheStatements(t *testing.T) {
	named, found := map[string]bool{}, map[string]bool{}
	for _, x := range command.Transitions {
		named[x.By] = true
	}

	sets := regexp.MustCompile(`(?s)^(insert into commands\b[^;]*\bstate\b|.*\bupdate commands\b[^;]*\bset state =|.*\bupdate commands\b[^;]*, state =)`)
	for _, dir := range []string{"intake", "send"} {
		files, err := filepath.Glob(dir + "/*.go")
		require.NoError(t, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			for _, c := range regexp.MustCompile("(?s)const (\\w+) = `([^`]*)").FindAllStringSubmatch(string(text), -1) {
				if !strings.HasSuffix(file, "_test.go") && sets.MatchString(strings.TrimSpace(c[2])) {
					found[c[1]] = true
				}
			}
		}
	}

	require.Equal(t, named, found)
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
				require.True(t, slices.ContainsFunc(command.Transitions, func(x command.Transition) bool {
					return x.From == from && x.To == to
				}), "%s to %s", from, to)
			}
		}
	}
}
