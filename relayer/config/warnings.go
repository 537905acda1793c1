package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// warn records a setting that loads but is probably a mistake.
func (l *loader) warn(variable, format string, args ...any) {
	l.c.Warnings = append(l.c.Warnings, l.problem(variable, fmt.Sprintf(format, args...)))
}

// warnings looks for settings that are without effect, contradictory, or unknown.
func (l *loader) warnings() {
	set := func(variable string) bool { return l.environ[variable] != "" }

	if set("CONFIRMATIONS") && l.c.Finality != "confirmations" {
		l.warn("CONFIRMATIONS", "has no effect with FINALITY=%s: remove one of the two", l.c.Finality)
	}

	if set("OTHER_EVENTS_TOPIC_ID") && len(l.c.Other) == 0 {
		l.warn("OTHER_EVENTS_TOPIC_ID",
			"gets only what waits from before: EVENT_NAMES names no event besides the four that go to PUBSUB_TOPIC_ID")
	}

	if set("EVENT_NAMES") && len(l.c.Other) == 0 {
		l.warn("EVENT_NAMES", "names only events that are published anyway: remove it")
	}

	if !set("START_BLOCK") && l.c.StartBlock == 0 {
		l.warn("START_BLOCK", "reading begins at block 0: set it to the block in which the factory was deployed")
	}

	if set("CLOUDSQL_INSTANCE") && set("SESSION_DATABASE_URL") {
		l.warn("SESSION_DATABASE_URL",
			"with the Cloud SQL connector there is no transaction pool: remove it unless its user differs")
	}

	if l.c.RPCTimeout > l.c.ResignAfter {
		l.warn("RPC_TIMEOUT", "is longer than RESIGN_AFTER=%s: one slow answer makes a leader resign", l.c.ResignAfter)
	}

	if set("RPC_MAX_RPS") && l.c.RPCMaxRPS > 0 && l.c.RPCMaxRPS < 1 {
		l.warn("RPC_MAX_RPS", "less than one request per second does not keep up with most chains")
	}

	l.misspelt()
}

// misspelt warns of variables with names that resemble ours.
func (l *loader) misspelt() {
	names := slices.Sorted(maps.Keys(byName))
	for _, name := range slices.Sorted(maps.Keys(l.environ)) {
		if _, known := byName[name]; known {
			continue
		}

		if meant := nearest(name, names); meant != "" {
			// The value is hidden: it may be the secret meant for the right variable.
			l.c.Warnings = append(l.c.Warnings, Problem{name, "***", "is not a variable of the relayer: was " + meant +
				" meant?"})
		}
	}
}

// shortName is the length below which names resemble each other by chance.
const shortName = 6

// nearest returns the one of all names that was probably meant, or empty.
func nearest(name string, all []string) string {
	plain := func(s string) string { return strings.ReplaceAll(strings.ToUpper(s), "_", "") }
	given := plain(name)
	if len(given) < shortName {
		return ""
	}

	best, least := "", 3 // one or two wrong letters are a mistake in typing
	for _, one := range all {
		want := plain(one)
		if len(want) < shortName {
			continue
		}

		d := distance(given, want)
		if strings.HasPrefix(want, given) && len(given) >= shortName+2 { // cut short: FACTORY_ADDR, CONFIRM
			d = min(d, 2)
		}

		if d < least && (d < 2 || len(want) > shortName+2) {
			best, least = one, d
		}
	}

	return best
}

// distance counts the letters to insert, delete, replace, or swap with their neighbour to turn a
// into b.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}

	for j := range rows[0] {
		rows[0][j] = j
	}

	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			replace := rows[i-1][j-1]
			if a[i-1] != b[j-1] {
				replace++
			}

			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, replace)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}

	return rows[len(a)][len(b)]
}
