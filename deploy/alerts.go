package deploy

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

//go:embed prometheus/alerts.yaml.tmpl
var alertTemplate string

// freshSeries is what $fresh stands for, as the template says.
var freshSeries = regexp.MustCompile(`(?m)^# \$fresh = (.+)$`).FindStringSubmatch(alertTemplate)[1]

var groupName = regexp.MustCompile(`(?m)^  - name: (escrow-relayer-[a-z]+)$`)

// Alerts is the rule file of Prometheus for some chains: every rule once for each, so that a chain
// whose whole fleet is gone is missed while another lives.
func Alerts(chains []int64) ([]byte, error) {
	groups, err := alertGroups(chains)
	if err != nil {
		return nil, err
	}

	return []byte("# Written by `escrow-relayer plan alerts` from alerts.yaml.tmpl, which explains the rules.\ngroups:\n" + groups), nil
}

// PrometheusRule is the same for the Prometheus operator, which wants the groups inside an object of its own.
func PrometheusRule(chains []int64) ([]byte, error) {
	groups, err := alertGroups(chains)
	if err != nil {
		return nil, err
	}

	var spec yaml.Node
	if err := yaml.Unmarshal([]byte("groups:\n"+groups), &spec); err != nil {
		return nil, fmt.Errorf("read the rules: %w", err)
	}

	withoutComments(&spec)
	name := []string{"escrow-relayer"}
	for _, chain := range chains {
		name = append(name, strconv.FormatInt(chain, 10))
	}

	var b bytes.Buffer
	b.WriteString("# Written by `escrow-relayer plan alerts --operator`.\n")
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	err = enc.Encode(struct {
		APIVersion string            `yaml:"apiVersion"`
		Kind       string            `yaml:"kind"`
		Metadata   map[string]string `yaml:"metadata"`
		Spec       *yaml.Node        `yaml:"spec"`
	}{"monitoring.coreos.com/v1", "PrometheusRule", map[string]string{"name": strings.Join(name, "-")}, spec.Content[0]})
	if err != nil {
		return nil, fmt.Errorf("write the rules: %w", err)
	}

	return b.Bytes(), nil
}

func alertGroups(chains []int64) (string, error) {
	if len(chains) == 0 {
		return "", errors.New("no chain: name each chain whose fleet must be there, or its absence goes unnoticed")
	}

	_, body, _ := strings.Cut(alertTemplate, "\ngroups:\n")
	seen := map[int64]bool{}
	var b strings.Builder
	for _, chain := range chains {
		switch {
		case chain < 1:
			return "", fmt.Errorf("chain id %d: use the number of eth_chainId", chain)
		case seen[chain]:
			return "", fmt.Errorf("chain id %d is named twice", chain)
		}

		seen[chain] = true
		id := strconv.FormatInt(chain, 10)
		text := groupName.ReplaceAllString(body, "  - name: ${1}-"+id)
		b.WriteString(strings.NewReplacer("$fresh", strings.ReplaceAll(freshSeries, "$chain", id), "$chain",
			id).Replace(text))
	}

	return b.String(), nil
}

func withoutComments(n *yaml.Node) {
	n.HeadComment, n.LineComment, n.FootComment = "", "", ""
	for _, c := range n.Content {
		withoutComments(c)
	}
}
