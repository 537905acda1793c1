// Package deploy is everything that a platform team needs to run the relayer, and the tests that keep it true.
//
//	terraform          one Cloud Run service per partition, with topics, database, accounts, secrets, alerting
//	chart              a Helm chart for Kubernetes
//	compose            a local fleet with everything around it
//	prometheus         alerts and their unit tests; metrics.md documents what they may use
//	grafana            the dashboard
//	runbooks           what to do when an alert fires, and procedures
//	check.sh           what needs other programs: promtool, shellcheck, terraform, kubectl
//
// The tests hold the parts together: every alert has a runbook, every metric is documented, every
// expression is written once, every statement in a runbook runs against the schema.
package deploy
