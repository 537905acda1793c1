package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// README.md word for word, from an empty project to a fleet that serves and acts on commands. What a
// step forgets is refused by a later one, as Google, Postgres or Terraform would refuse it.
func TestFirstDeploymentWordForWord(t *testing.T) {
	t.Parallel()
	const page = "README.md"
	w := emptyWalk(t)
	w.sh(w.block(page, "gcloud config set project"))
	image := w.block(page, "make push")
	_, withoutAPIs, ok := strings.Cut(image, "\n")
	require.True(t, ok)
	w.refused(withoutAPIs, "artifactregistry.googleapis.com] not enabled")
	w.sh(image)
	w.sh(strings.Replace(w.block(page, "terraform init"), "# and fill it in", `; set-tfvars "image = \"$IMAGE\""`, 1))

	w.refused("terraform apply", "Secret Version [escrow-relayer-rpc-urls:1] not found")
	w.sh(w.block(page, "secrets versions add escrow-relayer-rpc-urls"))
	asPostgres := w.typed(page, "users set-password postgres", "grant usage, create on schema public")
	_, withoutPassword, ok := strings.Cut(asPostgres, "\n")
	require.True(t, ok)
	before := w.cloud()
	w.refused(withoutPassword, `authentication failed for user "postgres"`)
	require.NoError(t, before.save(w.file)) // the proxy of that attempt
	w.sh(asPostgres)
	migrate := w.block(page, "escrow-relayer migrate")
	w.refused(migrate, "connection refused")
	w.sh(w.typed(page, "--port 5434", "alter default privileges"))
	w.sh(migrate)
	w.sh(w.block(page, "CLOUDSDK_CONFIG="))
	w.sh(w.block(page, "escrow-relayer doctor"))
	require.Empty(t, w.cloud().Services)
	require.Contains(t, w.sh("terraform plan"), `create google_cloud_run_v2_service.relayer["0"]`)
	w.refused("(set -a; . ~/fleet.env; terraform plan)", "may not read or change the project's resources")
	w.sh("terraform apply") // a block of its own; the words stand in others, too
	w.sh(w.block(page, "escrow-relayer status"))
	require.Contains(t, w.sh("terraform plan"), "No changes.")
	for i, s := range w.serving() {
		require.Equal(t, "INGRESS_TRAFFIC_INTERNAL_ONLY", s.Ingress, "%d", i)
	}

	w.sh(w.block(page, "subscriptions create settlement"))
	agent := "serviceAccount:service-123456789012@gcp-sa-pubsub.iam.gserviceaccount.com"
	c := w.cloud()
	require.Equal(t, &subscription{Topic: "settlement.events.v1", DeadLetters: "settlement-dead-letters", Ordered: true,
		Consumers: agent}, c.Subscriptions["settlement"])
	require.Equal(t, agent, c.Topics["settlement-dead-letters"])
	require.Equal(t, "settlement-dead-letters", c.Subscriptions["settlement-dead-letters"].Topic)

	w.commands(page)

	// Then the runbooks, in the same shell.
	w.sh("cd ../..\n" + w.block("runbooks/README.md", "cloud-sql-proxy"))
	w.sh("escrow-relayer status")
}

// commands follows the section of that name: the fleet gets keys, and a requester asks.
func (w *walk) commands(page string) {
	t := w.t
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	for line := range strings.SplitSeq(blocks(string(text), "hcl")[0], "\n") {
		w.sh("set-tfvars '" + regexp.MustCompile(` +(=) +(.*\]).*`).ReplaceAllString(line, " $1 $2") + "'")
	}

	w.sh(w.block(page, "escrow-relayer sender address"))
	w.sh(w.block(page, "cat > senders.json"))
	w.sh(w.block(page, "cat > policy.json"))
	statements := slices.DeleteFunc(blocks(string(text), "postgresql"), func(b string) bool {
		return !strings.Contains(b, "-keys@")
	})
	require.Len(t, statements, 2)
	w.sh("psql 'host=127.0.0.1 port=5436 user=postgres dbname=relayer' <<'SQL'\n" + statements[0] + "\nSQL")
	w.sh("psql 'host=127.0.0.1 port=5434 user=escrow-relayer-ddl@fusion-prime.iam dbname=relayer' <<'SQL'\n" +
		statements[1] + "\nSQL")
	w.sh("set-tfvars 'key_services = 2'")
	w.sh(w.block(page, "escrow-relayer sender status"))
	of := w.serving()
	require.Equal(t, []string{"escrow-relayer-keys@fusion-prime.iam.gserviceaccount.com",
		"escrow-relayer-keys@fusion-prime.iam.gserviceaccount.com", "escrow-relayer@fusion-prime.iam.gserviceaccount.com"},
		[]string{of[0].Account, of[1].Account, of[2].Account})
	require.NoError(t, os.WriteFile(filepath.Join(w.dir, "requester.json"), []byte("{}"), 0o600))
	w.sh(w.block(page, "escrow-relayer command sign"))
}

// serving are the three services, which have to be up.
func (w *walk) serving() (all []*runService) {
	w.t.Helper()
	c := w.cloud()
	for _, name := range []string{"escrow-relayer-0", "escrow-relayer-1", "escrow-relayer-2"} {
		require.NotNil(w.t, c.Services[name], name)
		require.Empty(w.t, c.Services[name].Down, name)
		all = append(all, c.Services[name])
	}

	return all
}
