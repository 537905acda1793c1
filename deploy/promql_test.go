package deploy

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// uses is what an expression refers to.
type uses struct {
	metrics map[string][]string // metric -> labels that its own matchers name
	labels  []string            // labels of by, without, on, ignoring and group modifiers
}

var (
	promName  = regexp.MustCompile(`^[a-zA-Z_:]`)
	promToken = regexp.MustCompile(`^(?:\s+|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\[[^\]]*\]|[0-9][0-9a-z.]*|[a-zA-Z_:][a-zA-Z0-9_:]*|[=!]~|[=!<>]=|[-+*/%^=<>(){},@])`)
	// Words that are neither a metric nor a function when no parenthesis follows.
	promWords  = []string{"and", "or", "unless", "bool", "offset", "inf", "nan", "Inf", "NaN"}
	promGroups = []string{"by", "without", "on", "ignoring", "group_left", "group_right"}
)

// parsePromQL finds the metrics and labels of an expression. It is no judge of syntax: promtool is, in check.sh.
func parsePromQL(expr string) (u uses, err error) {
	u.metrics = map[string][]string{}
	var tokens []string
	for rest := expr; rest != ""; {
		t := promToken.FindString(rest)
		if t == "" {
			return u, fmt.Errorf("read %q at %q", expr, rest)
		}

		rest = rest[len(t):]
		if t = strings.TrimSpace(t); t != "" {
			tokens = append(tokens, t)
		}
	}

	at := func(i int) string {
		if i < len(tokens) {
			return tokens[i]
		}

		return ""
	}
	last := ""
	for i := 0; i < len(tokens); i++ {
		t := tokens[i]
		switch {
		case slices.Contains(promGroups, t) && at(i+1) == "(":
			for i += 2; i < len(tokens) && tokens[i] != ")"; i++ {
				if tokens[i] != "," {
					u.labels = append(u.labels, tokens[i])
				}
			}
		case t == "{":
			if last == "" {
				return u, fmt.Errorf("read %q: matchers without a metric name", expr)
			}

			for i++; i < len(tokens) && tokens[i] != "}"; i++ {
				if strings.ContainsAny(at(i+1), "=~") && !strings.HasPrefix(at(i+1), `"`) {
					u.metrics[last] = append(u.metrics[last], tokens[i])
					i += 2
				}
			}
		case !promName.MatchString(t), at(i+1) == "(", slices.Contains(promWords, t):
			last = ""
		case slices.Contains(promGroups, at(i+1)) && at(i+2) == "(": // sum by (…) (…)
			last = ""
		default:
			last = t
			if _, ok := u.metrics[t]; !ok {
				u.metrics[t] = nil
			}
		}
	}

	return u, nil
}

func TestParsePromQL(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		expr    string
		metrics map[string][]string
		labels  []string
	}{
		{`a > 1`, map[string][]string{"a": nil}, nil},
		{`sum by (x, y) (rate(a_total{b="c by (z)",d!~"e|f"}[5m])) / sum(b_total) > 0.5`,
			map[string][]string{"a_total": {"b", "d"}, "b_total": nil}, []string{"x", "y"}},
		{`sum(a) by (x) or absent(b)`, map[string][]string{"a": nil, "b": nil}, []string{"x"}},
		{`a{s="u"} / ignoring (s) a{s="m"} > 0.9`, map[string][]string{"a": {"s", "s"}}, []string{"s"}},
		{`histogram_quantile(0.5, sum by (le) (rate(h_bucket[5m])))`, map[string][]string{"h_bucket": nil}, []string{"le"}},
		{`a * on (x) group_left (y) b offset 5m`, map[string][]string{"a": nil, "b": nil}, []string{"x", "y"}},
	} {
		u, err := parsePromQL(c.expr)
		require.NoError(t, err)
		require.Equal(t, c.metrics, u.metrics, c.expr)
		require.Equal(t, c.labels, u.labels, c.expr)
	}

	for _, bad := range []string{`a ; b`, `{__name__="a"}`} {
		_, err := parsePromQL(bad)
		require.Error(t, err, bad)
	}
}
