//go:build terraform

package deploy

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What Terraform itself makes of the rules and the dashboard; check.sh runs it where there is a
// terraform. The two files need no provider.
func TestTerraformEvaluates(t *testing.T) {
	here, err := os.Getwd()
	require.NoError(t, err)
	dir := t.TempDir()
	for _, link := range []string{"prometheus", "grafana"} {
		require.NoError(t, os.Symlink(filepath.Join(here, link), filepath.Join(dir, link)))
	}

	work := filepath.Join(dir, "module")
	require.NoError(t, os.Mkdir(work, 0o755))
	for _, file := range []string{"alerts.tf", "dashboard.tf"} {
		require.NoError(t, os.Symlink(filepath.Join(here, "terraform", file), filepath.Join(work, file)))
	}

	require.NoError(t, os.WriteFile(filepath.Join(work, "variables.tf"),
		[]byte(`variable "chain_id" {
  default = 1
}

variable "name" {
  default = "escrow-relayer"
}
`), 0o600))
	cmd := exec.CommandContext(t.Context(), "terraform", "console")
	cmd.Dir = work
	cmd.Stdin = strings.NewReader("jsonencode({alerts = local.alerts, tiles = local.tiles})\n")
	out, err := cmd.Output()
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	var text string
	require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &text))
	var got struct {
		Alerts map[string]struct{ Group, Interval, Query, Duration, Severity, Summary, Runbook string }
		Tiles  []struct {
			XPos, YPos, Width, Height int
			Widget                    struct {
				Title string
				json.RawMessage
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(text), &got))

	rules := alertRules(t)
	require.Len(t, got.Alerts, len(rules))
	for _, r := range rules {
		a := got.Alerts[r.Alert]
		require.Equal(t, strings.ReplaceAll(r.Expr, `chain_id="1"`,
			`chain_id="1",fleet="escrow-relayer"`), a.Query, r.Alert)
		require.Equal(t, strings.ToUpper(r.Labels["severity"]), a.Severity, r.Alert)
		require.Equal(t, strings.ReplaceAll(r.Annotations["runbook_url"], "{{ $labels.runbook }}", "README.md"), a.Runbook)
		var want time.Duration
		if r.For != "" {
			want, err = time.ParseDuration(r.For)
			require.NoError(t, err)
		}

		have, err := time.ParseDuration(a.Duration)
		require.NoError(t, err)
		require.Equal(t, want, have, r.Alert)
	}

	data, err := os.ReadFile("grafana/dashboard.json")
	require.NoError(t, err)
	var d dashboard
	require.NoError(t, json.Unmarshal(data, &d))
	require.Len(t, got.Tiles, len(d.Panels))
	require.NotContains(t, text, "$__")
	require.NotContains(t, text, "$chain")
	require.NotContains(t, text, "$fleet")
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			query, err := json.Marshal(grafanaVariable.Replace(target.Expr))
			require.NoError(t, err)
			require.Contains(t, unescaped(text), unescaped(string(query)), p.Title)
		}
	}
}

// unescaped undoes what Terraform's and Go's JSON write differently.
func unescaped(s string) string {
	return strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(s)
}
