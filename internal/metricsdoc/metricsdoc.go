// Package metricsdoc reads deploy/metrics.md, the documentation of the metrics, for the tests that hold
// alerts, the dashboard and /metrics to it.
package metricsdoc

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// Metric is a row of metrics.md.
type Metric struct {
	Name   string
	Kind   string // gauge, counter or histogram
	Labels []string
	Values map[string][]string // of labels whose values are listed
	Scope  string              // instance, or chain: every instance reports the same, so it must not be summed
	// Commands says that it is served only where commands are configured, or were used.
	Commands bool
}

var (
	metricRow  = regexp.MustCompile("^\\| (`[a-zA-Z0-9_:]+`(?:, `[a-zA-Z0-9_:]+`)?) \\| (gauge|counter|histogram) \\|(.*?)\\| (instance|chain) \\| (.+?) \\|$")
	labelValue = regexp.MustCompile("(?:^|,) *`([^`]+)`")
)

// Read returns the documented metrics by name: what alerts and the dashboard may use, and what
// /metrics must serve. `up` is one of them, although the scraper writes it.
func Read(path string) (map[string]Metric, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read metrics.md: %w", err)
	}

	found := map[string]Metric{}
	commands := false
	for line := range strings.SplitSeq(string(text), "\n") {
		if strings.HasPrefix(line, "## ") {
			commands = line == "## Commands"
		}

		if !strings.HasPrefix(line, "| `") {
			continue
		}

		row := metricRow.FindStringSubmatch(line)
		if row == nil {
			return nil, fmt.Errorf("read metrics.md at %q: want | `name`, `alias` | type | labels | instance or chain | meaning |", line)
		}

		m := Metric{Kind: row[2], Scope: row[4], Values: map[string][]string{}, Commands: commands}
		// "`a`: `x`, `y`; `b`, `c`" names the labels a, b and c; x and y are values of a.
		for group := range strings.SplitSeq(row[3], ";") {
			names, values, _ := strings.Cut(group, ":")
			for label := range strings.SplitSeq(names, ",") {
				if label = strings.Trim(label, " `"); label != "" {
					m.Labels = append(m.Labels, label)
				}
			}

			for _, v := range labelValue.FindAllStringSubmatch(values, -1) { // of the last one
				last := m.Labels[len(m.Labels)-1]
				m.Values[last] = append(m.Values[last], v[1])
			}
		}

		for name := range strings.SplitSeq(row[1], ", ") { // the second one is an alias
			m.Name = strings.Trim(name, "`")
			if _, twice := found[m.Name]; twice {
				return nil, fmt.Errorf("read metrics.md: %s is documented twice", m.Name)
			}

			found[m.Name] = m
		}
	}

	return found, nil
}
