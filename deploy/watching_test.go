package deploy

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/fusion-prime/escrow-relayer/internal/metricsdoc"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
	"github.com/fusion-prime/escrow-relayer/relayer/metrics"
)

var update = flag.Bool("update", false, "write generated and golden files instead of comparing them")

// golden compares with a file of this folder, or writes it.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		require.NoError(t, os.WriteFile(name, got, 0o644))
	}

	want, err := os.ReadFile(name)
	require.NoError(t, err, "make it with: go test ./deploy -update")
	require.Equal(t, string(want), string(got), "%s is out of date; if the change is meant: go test ./deploy -update",
		name)
}

// strictYAML decodes every document of a file and refuses fields that the target does not know.
func strictYAML(t *testing.T, name string, into any) {
	t.Helper()
	data, err := os.ReadFile(name)
	require.NoError(t, err)
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	require.NoError(t, d.Decode(into), name)
}

func decoded(t *testing.T, text []byte) (m map[string]any) {
	t.Helper()
	require.NoError(t, yaml.Unmarshal(text, &m))

	return m
}

// targetLabels come from the scrape, not from the relayer.
var targetLabels = []string{"chain_id", "fleet", "instance", "job"}

func documentedMetrics(t *testing.T) map[string]metricsdoc.Metric {
	t.Helper()
	known, err := metricsdoc.Read("metrics.md")
	require.NoError(t, err)
	require.Greater(t, len(known), 40)

	return known
}

// checkExpr fails when an expression uses a metric or label that metrics.md does not have.
func checkExpr(t *testing.T, where, expr string, known map[string]metricsdoc.Metric) {
	t.Helper()
	u, err := parsePromQL(expr)
	require.NoError(t, err, where)
	require.NotEmpty(t, u.metrics, where)
	allowed := slices.Clone(targetLabels)
	for name, labels := range u.metrics {
		m, ok := known[name]
		if base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, ""); !ok &&
			known[base].Kind == "histogram" {
			m, ok = known[base], true
			m.Labels = append(slices.Clone(m.Labels), "le")
		}

		require.True(t, ok, "%s uses %s, which metrics.md does not document", where, name)
		for _, l := range labels {
			require.Contains(t, append(slices.Clone(targetLabels), m.Labels...), l,
				"%s selects %s by a label that it does not have", where, name)
		}

		allowed = append(allowed, m.Labels...)
		if m.Scope == "chain" {
			require.NotRegexp(t, `sum( by \([^)]*\))? ?\(`+name+`\b`, expr,
				"%s sums %s, which every instance tells of the whole chain", where, name)
		}
	}

	for _, l := range u.labels {
		require.Contains(t, allowed, l, "%s groups by a label that its metrics do not have", where)
	}
}

type ruleFile struct {
	Groups []ruleGroup `yaml:"groups"`
}

type ruleGroup struct {
	Name     string `yaml:"name"`
	Interval string `yaml:"interval"`
	Rules    []rule `yaml:"rules"`
}

type rule struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for,omitempty"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

// testedChains are those of testdata/alerts.yaml, which alerts_test.yaml tests.
var testedChains = []Fleet{{Chain: 1}, {Chain: 10}}

// alertRules are the rules of one chain.
func alertRules(t *testing.T) []rule {
	t.Helper()
	text, err := Alerts(testedChains[:1]...)
	require.NoError(t, err)
	var f ruleFile
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	require.NoError(t, d.Decode(&f))
	var rules []rule
	for _, g := range f.Groups {
		rules = append(rules, g.Rules...)
	}

	require.NotEmpty(t, rules)

	return rules
}

const runbooks = fleet.Runbooks

// section is the text below a heading of the second level, up to the next one.
func section(text, anchor string) (string, bool) {
	for _, part := range strings.Split("\n"+text, "\n## ")[1:] {
		title, body, _ := strings.Cut(part, "\n")
		if strings.ReplaceAll(strings.ToLower(strings.TrimSpace(title)), " ", "-") == anchor {
			return body, true
		}
	}

	return "", false
}

// checkSection reads the section of an alert or problem: what it means, the first step, how to fix it.
func checkSection(t *testing.T, url string) {
	t.Helper()
	file, anchor, ok := strings.Cut(url, "#")
	require.True(t, ok, "%s has no section", url)
	text, err := os.ReadFile(path.Join("runbooks", file))
	require.NoError(t, err, url)
	body, ok := section(string(text), anchor)
	require.True(t, ok, "%s does not exist", url)
	parts := strings.Split(body, "\n### ")
	require.Len(t, parts, 3, url)
	for i, heading := range []string{"", "First step\n", "How to fix\n"} {
		rest, ok := strings.CutPrefix(parts[i], heading)
		require.True(t, ok, "%s: no part %q", url, heading)
		require.Greater(t, len(strings.TrimSpace(rest)), 20, "%s: %q says nothing", url, heading)
	}
}

func TestEveryAlertHasARunbook(t *testing.T) {
	t.Parallel()
	known := documentedMetrics(t)
	seen := map[string]bool{}
	for _, r := range alertRules(t) {
		require.Regexp(t, `^Relayer[A-Z][A-Za-z]+$`, r.Alert)
		require.False(t, seen[r.Alert], "%s is there twice", r.Alert)
		seen[r.Alert] = true
		checkExpr(t, r.Alert, r.Expr, known)
		require.Contains(t, []string{"critical", "warning"}, r.Labels["severity"], r.Alert)
		require.NotEmpty(t, r.Annotations["description"], r.Alert)
		require.NotEmpty(t, r.Annotations["summary"], r.Alert)
		require.NotContains(t, r.Annotations["summary"], "{{", "%s: Cloud Monitoring shows the summary as it is", r.Alert)

		if strings.Contains(r.Annotations["runbook_url"], "$labels.runbook") {
			require.Equal(t, runbooks+"{{ $labels.runbook }}", r.Annotations["runbook_url"], r.Alert)
			continue
		}

		_, anchor, _ := strings.Cut(r.Annotations["runbook_url"], "#")
		require.True(t, strings.HasPrefix(strings.ToLower(r.Alert), anchor), "the section of %s is named after it", r.Alert)
		checkSection(t, strings.TrimPrefix(r.Annotations["runbook_url"], runbooks))
	}

	for kind, about := range fleet.Kinds {
		if strings.HasSuffix(about.Page, "#"+kind) {
			seen[kind] = true
			checkSection(t, about.Page)
		}
	}

	files, err := filepath.Glob("runbooks/*.md")
	require.NoError(t, err)
	for _, f := range files {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`(?m)^## (Relayer\S+|[a-z]+_[a-z_]+)$`).FindAllStringSubmatch(string(text), -1) {
			require.True(t, seen[m[1]], "%s has a section for %s, and there is no such alert or problem", f, m[1])
		}
	}
}

func TestEveryAlertIsTestedBothWays(t *testing.T) {
	t.Parallel()
	var f struct {
		RuleFiles          []string `yaml:"rule_files"`
		EvaluationInterval string   `yaml:"evaluation_interval"`
		Tests              []struct {
			Name        string `yaml:"name"`
			Interval    string `yaml:"interval"`
			InputSeries []struct {
				Series string `yaml:"series"`
				Values string `yaml:"values"`
			} `yaml:"input_series"`
			AlertRuleTest []struct {
				EvalTime  string `yaml:"eval_time"`
				Alertname string `yaml:"alertname"`
				ExpAlerts []struct {
					ExpLabels      map[string]string `yaml:"exp_labels"`
					ExpAnnotations map[string]string `yaml:"exp_annotations"`
				} `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		} `yaml:"tests"`
	}
	strictYAML(t, "prometheus/alerts_test.yaml", &f)
	known := documentedMetrics(t)
	fires, quiet := map[string]bool{}, map[string]bool{}
	for _, test := range f.Tests {
		for _, s := range test.InputSeries {
			checkExpr(t, test.Name, s.Series, known)
		}

		for _, a := range test.AlertRuleTest {
			fires[a.Alertname] = fires[a.Alertname] || len(a.ExpAlerts) > 0
			quiet[a.Alertname] = quiet[a.Alertname] || len(a.ExpAlerts) == 0
		}
	}

	for _, r := range alertRules(t) {
		require.True(t, fires[r.Alert], "alerts_test.yaml never shows %s firing", r.Alert)
		require.True(t, quiet[r.Alert], "alerts_test.yaml never shows %s not firing", r.Alert)
	}
}

// dashboard is the part of Grafana's model that the tests and Terraform use.
type dashboard struct {
	UID    string  `json:"uid"`
	Panels []panel `json:"panels"`
}

type panel struct {
	ID      int    `json:"id"`
	Type    string `json:"type"`
	Title   string `json:"title"`
	GridPos struct{ H, W, X, Y int }
	Targets []struct {
		Expr  string `json:"expr"`
		RefID string `json:"refId"`
	} `json:"targets"`
}

var grafanaVariable = strings.NewReplacer("$__rate_interval", "5m", "$__range", "1h", "$chain", ".*", "$fleet", ".*")

func TestDashboardUsesDocumentedMetrics(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("grafana/dashboard.json")
	require.NoError(t, err)
	var d dashboard
	require.NoError(t, json.Unmarshal(data, &d))
	require.Equal(t, "escrow-relayer", d.UID)

	known := documentedMetrics(t)
	ids := map[int]bool{}
	taken := map[[2]int]string{}
	shown := map[string]bool{}
	for _, p := range d.Panels {
		require.False(t, ids[p.ID], "panel id %d is there twice", p.ID)
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				require.Empty(t, taken[[2]int{x, y}], "%s lies over another panel", p.Title)
				taken[[2]int{x, y}] = p.Title
			}
		}

		require.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
		require.Equal(t, p.Type == "row", len(p.Targets) == 0, "%s: a panel has queries, a row has none", p.Title)
		for _, target := range p.Targets {
			expr := grafanaVariable.Replace(target.Expr)
			require.NotContains(t, expr, "$", "%s uses a variable that nothing defines", p.Title)
			require.Contains(t, target.Expr, `chain_id=~"$chain",fleet=~"$fleet"`, "%s ignores the chosen fleet", p.Title)
			require.NotRegexp(t, wholeChain, expr, "%s takes two fleets of one chain for one", p.Title)
			checkExpr(t, "panel "+p.Title, expr, known)
			require.NotRegexp(t, wholeBucket, expr, p.Title)
			u, err := parsePromQL(expr)
			require.NoError(t, err)
			for m := range u.metrics {
				shown[strings.TrimSuffix(m, "_bucket")] = true
			}
		}
	}

	aliases := slices.Collect(maps.Values(metrics.Aliases))
	for name := range known {
		require.True(t, shown[name] || name == "up" || slices.Contains(aliases, name),
			"%s is documented and on no panel", name)
	}
}

// The queries of slo.md ask for what is there, and its alerts exist.
func TestServiceLevelsUseDocumentedMetrics(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("slo.md")
	require.NoError(t, err)
	known := documentedMetrics(t)
	queries := strings.Split(strings.Join(blocks(string(page), "promql"), "\n"), "\n")
	require.Len(t, queries, 4)
	for _, q := range queries {
		checkExpr(t, "slo.md", q, known)
		require.NotRegexp(t, wholeBucket, q)
		require.NotRegexp(t, wholeChain, q)
	}

	alerts := map[string]bool{}
	for _, r := range alertRules(t) {
		alerts[r.Alert] = true
	}

	named := regexp.MustCompile(`\bRelayer[A-Z][A-Za-z]+`).FindAllString(string(page), -1)
	require.NotEmpty(t, named)
	for _, alert := range named {
		require.True(t, alerts[alert], "slo.md names %s", alert)
	}
}

// The files that others read are what the generator writes.
func TestAlertFilesAreWhatTheTemplateSays(t *testing.T) {
	t.Parallel()
	for name, fleets := range map[string][]Fleet{
		"prometheus/alerts.yaml": {{Chain: 31337}, {Chain: 31338}}, "testdata/alerts.yaml": testedChains,
	} {
		text, err := Alerts(fleets...)
		require.NoError(t, err)
		golden(t, name, text)
	}

	whole, one := Fleet{1, ""}, Fleet{1, "a"}
	for _, fleets := range [][]Fleet{nil, {whole, whole}, {one, one}, {one, whole}, {whole, one}} {
		_, err := Alerts(fleets...)
		require.Error(t, err, "%v", fleets)
	}

	for _, text := range []string{"", "0", "-1", "mainnet", "1:", "1:a b", ":a"} {
		_, err := ParseFleet(text)
		require.Error(t, err, text)
	}
}

// wholeBucket finds nothing in Prometheus 3, which stores le="256" as le="256.0".
var wholeBucket = regexp.MustCompile(`\ble="[0-9]+"`)

// wholeChain groups or matches by the chain without the fleet. Two fleets may follow one chain.
var wholeChain = regexp.MustCompile(`\((?:[a-z]+, )*chain_id(?:\)|, [^f])`)

// A rule that names no chain would watch all of them at once, and so miss the one that is gone.
func TestEverySelectorNamesTheChain(t *testing.T) {
	t.Parallel()
	for _, r := range alertRules(t) {
		u, err := parsePromQL(r.Expr)
		require.NoError(t, err, r.Alert)
		for name, labels := range u.metrics {
			require.True(t, name == "up" || slices.Contains(labels, "chain_id"), "%s selects %s of all chains", r.Alert, name)
		}

		require.NotContains(t, r.Expr, "$", r.Alert)
		require.NotRegexp(t, wholeBucket, r.Expr, r.Alert)
		require.NotRegexp(t, wholeChain, r.Expr, "%s takes two fleets of one chain for one", r.Alert)
		require.NotRegexp(t, `increase\(relayer_(reorgs|verifier)`, r.Expr,
			"%s: a counter that is 1 at its first scrape never increases", r.Alert)
	}
}

// A fleet that is named is missed although another of the chain answers, also when it
// has never answered: no selector may be satisfied by the other.
func TestAlertsOfAFleet(t *testing.T) {
	t.Parallel()
	fleet, err := ParseFleet("1:blue")
	require.NoError(t, err)
	text, err := Alerts(fleet, Fleet{1, "green"})
	require.NoError(t, err)
	require.Contains(t, string(text), "- name: escrow-relayer-fleet-1-blue\n")
	var f ruleFile
	require.NoError(t, yaml.Unmarshal(text, &f))
	own := 0
	for _, g := range f.Groups {
		for _, r := range g.Rules {
			u, err := parsePromQL(r.Expr)
			require.NoError(t, err, r.Alert)
			for name, labels := range u.metrics {
				require.True(t, name == "up" || slices.Contains(labels, "fleet"), "%s selects %s of all fleets", r.Alert,
					name)
			}

			require.NotRegexp(t, `chain_id="1"[^,]`, r.Expr, r.Alert)
			if strings.Contains(r.Expr, `fleet="blue"`) {
				own++
				require.NotContains(t, r.Expr, `fleet="green"`, r.Alert)
				require.Equal(t, fleet.Name, r.Labels["fleet"], "%s: two rules of one name and labels are one to promtool",
					r.Alert)
			}
		}
	}

	require.Equal(t, len(alertRules(t)), own)
}

// The rules that the relayer's judgement does not carry keep the limits of the page: a threshold and its `for` add up.
func TestAlertsKeepTheLimitsOfThePage(t *testing.T) {
	t.Parallel()
	number := regexp.MustCompile(`> ([0-9]+)`)
	rules := map[string]rule{}
	for _, r := range alertRules(t) {
		rules[r.Alert] = r
	}

	for alert, limit := range map[string]time.Duration{
		"RelayerNoLeader": fleet.LimitNoLeader.Critical, "RelayerFleetDown": fleet.LimitNoLeader.Critical,
		"RelayerDatabaseDown": fleet.LimitDatabase.Critical, "RelayerHeartbeatStale": fleet.LimitHeartbeat.Behind,
	} {
		wait, err := time.ParseDuration(rules[alert].For)
		require.NoError(t, err)
		threshold, err := strconv.Atoi(number.FindStringSubmatch(rules[alert].Expr)[1])
		require.NoError(t, err)
		require.Equal(t, limit, wait+time.Duration(threshold)*time.Second, alert)
	}

	all, _ := services(t, false)
	c, _, _ := configured(t, all[0])
	wait, err := time.ParseDuration(rules["RelayerNotJoined"].For)
	require.NoError(t, err)
	require.Greater(t, wait, c.InstanceLockWait, "one that waits for its predecessor may do so")
}

// A problem that the page shows is on the pager: no kind is left out but those that a rule of its own tells, and each
// kind that is left out exists.
func TestEveryProblemReachesThePager(t *testing.T) {
	t.Parallel()
	leftOut := regexp.MustCompile(`kind!~"([^"]+)"`)
	for _, r := range alertRules(t) {
		m := leftOut.FindStringSubmatch(r.Expr)
		if m == nil {
			continue
		}

		var kinds []string
		for kind := range fleet.Kinds {
			if regexp.MustCompile("^(" + m[1] + ")$").MatchString(kind) {
				kinds = append(kinds, kind)
			}
		}

		require.ElementsMatch(t, []string{fleet.NoLeader, fleet.NobodyAlive, fleet.DatabaseGone, fleet.DatabaseRefuses,
			fleet.ReadOnly, fleet.SessionGone, fleet.InstanceFault}, kinds, r.Alert)
	}
}
