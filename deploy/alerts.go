package deploy

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/fusion-prime/escrow-relayer/relayer/config"
)

//go:embed prometheus/alerts.yaml.tmpl
var alertTemplate string

// freshSeries is the value of $fresh, as explained in the template.
var freshSeries = regexp.MustCompile(`(?m)^# \$fresh = (.+)$`).FindStringSubmatch(alertTemplate)[1]

var groupName = regexp.MustCompile(`(?m)^  - name: (escrow-relayer-[a-z]+)$`)

// Fleet is one that must exist, on a chain.
type Fleet struct {
	Chain int64
	Name  string // FLEET; empty: any fleet of the chain
}

// fleetName is what FLEET may be.
var fleetName = regexp.MustCompile(`^` + config.FleetPattern + `$`)

// ParseFleet reads CHAIN_ID, or CHAIN_ID:FLEET.
func ParseFleet(text string) (f Fleet, err error) {
	chain, name, one := strings.Cut(text, ":")
	if f.Chain, err = strconv.ParseInt(chain, 10, 64); err != nil || f.Chain < 1 {
		return f, fmt.Errorf("chain id %q: use the number of eth_chainId, as in 1, or 1: and FLEET", chain)
	}

	if one && !fleetName.MatchString(name) {
		return f, fmt.Errorf("fleet %q of chain %d is no name of a fleet: use its FLEET, or leave it out with its colon", name,
			f.Chain)
	}

	f.Name = name

	return f, nil
}

// String is part of the names of a fleet's files and rules.
func (f Fleet) String() string {
	if f.Name == "" {
		return strconv.FormatInt(f.Chain, 10)
	}

	return fmt.Sprintf("%d-%s", f.Chain, f.Name)
}

// Alerts is Prometheus' rule file for some fleets. It repeats every rule for each, so that a
// missing fleet is noticed while another one runs.
func Alerts(fleets ...Fleet) ([]byte, error) {
	if len(fleets) == 0 {
		return nil, errors.New("no chain: name each chain whose fleet must be there, or its absence goes unnoticed")
	}

	_, body, _ := strings.Cut(alertTemplate, "\ngroups:\n")
	names := map[int64][]string{}
	var b bytes.Buffer
	b.WriteString("# Written by `escrow-relayer plan alerts` from alerts.yaml.tmpl, which explains the rules.\ngroups:\n")
	for _, f := range fleets {
		named := names[f.Chain]
		switch {
		case slices.Contains(named, f.Name):
			return nil, fmt.Errorf("%s is named twice", f)
		case len(named) > 0 && (f.Name == "" || named[0] == ""):
			return nil, fmt.Errorf("chain %d is named with a fleet and without: an alert would fire twice; name each fleet", f.Chain)
		}

		names[f.Chain] = append(named, f.Name)
		b.WriteString(f.fill(groupName.ReplaceAllString(body, "  - name: ${1}-"+f.String())))
	}

	return b.Bytes(), nil
}

// fill puts a fleet into the selectors of the rules, as terraform/alerts.tf does, and into their
// labels.
func (f Fleet) fill(rules string) string {
	const selector, label = `chain_id="$chain"`, `chain_id: "$chain"`
	rules = strings.ReplaceAll(rules, "$fresh", freshSeries)
	if f.Name != "" {
		rules = strings.ReplaceAll(rules, selector, fmt.Sprintf(`%s,fleet=%q`, selector, f.Name))
		rules = strings.ReplaceAll(rules, label, fmt.Sprintf(`%s, fleet: %q`, label, f.Name))
	}

	return strings.ReplaceAll(rules, "$chain", strconv.FormatInt(f.Chain, 10))
}
