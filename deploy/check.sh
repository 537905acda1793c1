#!/usr/bin/env bash
# What the Go tests of this folder cannot check by themselves, because it needs other programs.
#
#   promtool, shellcheck   required (Debian: prometheus, shellcheck; Homebrew: prometheus, shellcheck)
#   jq                     required
#   terraform, kubectl     used where they are installed; what was left out is said at the end
set -euo pipefail
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
left_out=()

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
# Each becomes a recording rule of a throwaway file, with Grafana's variables filled in.
jq '[.panels[].targets[]?.expr | gsub("\\$__rate_interval"; "5m") | gsub("\\$__range"; "1h") | gsub("\\$chain"; ".*")]
    | to_entries | {groups: [{name: "dashboard", rules: map({record: "panel:\(.key)", expr: .value})}]}' grafana/dashboard.json >"$work/dashboard.yaml"
promtool check rules "$work/dashboard.yaml"

step "shell scripts"
find . -name '*.sh' -print0 | sort -z | xargs -0 shellcheck

step "Terraform: format"
if command -v terraform >/dev/null; then
  terraform fmt -check -diff -recursive terraform
else
  left_out+=("terraform fmt")
fi

step "Kubernetes: every overlay renders"
if command -v kubectl >/dev/null; then
  for overlay in kubernetes/overlays/*/; do
    kubectl kustomize "$overlay" >"$work/rendered.yaml"
    echo "$overlay: $(grep -c '^kind:' "$work/rendered.yaml") objects"
  done
else
  left_out+=("kubectl kustomize")
fi

printf '\n'
for what in "${left_out[@]}"; do echo "not checked, the program is not installed: $what"; done
echo "deploy: ok"
