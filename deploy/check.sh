#!/usr/bin/env bash
# What the Go tests of this folder cannot check by themselves, because it needs other programs.
#
#   check.sh ci      rules, queries and scripts: seconds
#   check.sh full    Terraform and the Helm chart too: minutes
#
#   promtool, shellcheck   required (Debian: prometheus, shellcheck; Homebrew: prometheus, shellcheck)
#   jq                     required
#   terraform              used where it is installed (and the provider can be downloaded); the end says what was left out
#   helm                   is built from its Go module: two minutes at first
set -euo pipefail
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
left_out=()
case ${1:-full} in
  ci | full) ;;
  *) echo "usage: check.sh ci|full" >&2; exit 2 ;;
esac

step() { printf '\n== %s\n' "$*"; }
for tool in promtool shellcheck jq; do
  command -v "$tool" >/dev/null || { echo "$tool is not installed; see the head of $0" >&2; exit 2; }
done

step "alerts: syntax and unit tests"
promtool check rules prometheus/alerts.yaml
promtool test rules prometheus/alerts_test.yaml

step "Prometheus configuration of compose"
cp compose/prometheus.yml prometheus/alerts.yaml "$work"
promtool check config "$work/prometheus.yml"

step "dashboard: every expression is PromQL"
# Each becomes a recording rule of a temporary file, with Grafana's variables filled in.
jq '[.panels[].targets[]?.expr | gsub("\\$__rate_interval"; "5m") | gsub("\\$__range"; "1h") | gsub("\\$chain|\\$fleet"; ".*")]
    | to_entries | {groups: [{name: "dashboard", rules: map({record: "panel:\(.key)", expr: .value})}]}' grafana/dashboard.json >"$work/dashboard.yaml"
promtool check rules "$work/dashboard.yaml"

step "service levels: every query is PromQL"
awk '/^```/ { inside = /promql/; next } inside' slo.md |
  jq -R -n '[inputs] | to_entries | {groups: [{name: "slo", rules: map({record: "slo:\(.key)", expr: .value})}]}' >"$work/slo.yaml"
promtool check rules "$work/slo.yaml"

step "shell scripts"
find . -name '*.sh' -print0 | sort -z | xargs -0 shellcheck

if [ "${1:-full}" = ci ]; then
  echo "deploy: ok, without Terraform and the chart"
  exit
fi

step "Terraform: format, what it makes of the rules and the dashboard, and validation by the provider"
if command -v terraform >/dev/null; then
  terraform fmt -check -diff -recursive terraform
  (cd .. && go test -tags terraform -run TestTerraformEvaluates ./deploy)
  cp -r terraform prometheus grafana "$work"
  if terraform -chdir="$work/terraform" init -backend=false -input=false >"$work/init.log" 2>&1; then
    terraform -chdir="$work/terraform" validate
  else
    left_out+=("terraform validate: the google provider cannot be downloaded here (the Go tests check arguments and references)")
  fi
else
  left_out+=("terraform fmt, console and validate")
fi

step "Kubernetes: the chart renders what the relayer accepts"
for values in chart/examples/*.yaml; do
  go run helm.sh/helm/v4/cmd/helm@v4.3.1 lint --quiet --strict chart -f "$values"
done
(cd .. && go test -tags helm -run TestChart ./deploy)

printf '\n'
for what in ${left_out[@]+"${left_out[@]}"}; do echo "not checked here: $what"; done
echo "deploy: ok"
