package deploy

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The runbooks' commands, word for word, against a cloud that refuses what Google, Terraform and the
// database refuse. What the same steps do to the data is tested on a real fleet, in cmd.

// walk is a person who follows a page in a shell.
type walk struct {
	t    *testing.T
	root string   // as the repository: the pages' commands name deploy/…
	dir  string   // where the shell is
	file string   // of the cloud
	env  []string // of the shell, as the last command left it
}

const (
	oldImage = "us-central1-docker.pkg.dev/fusion-prime/relayers/escrow-relayer:v1.0.0" // of terraform.tfvars.example
	newImage = "us-central1-docker.pkg.dev/fusion-prime/relayers/escrow-relayer:v1.1.0"
)

// emptyWalk is before the first deployment: the repository, the programs, and a project with nothing in it.
func emptyWalk(t *testing.T) *walk {
	t.Helper()
	w := &walk{t: t, root: t.TempDir()}
	w.dir, w.file = w.root, filepath.Join(w.root, "cloud.json")
	bin, module := filepath.Join(w.root, "programs"), filepath.Join(w.root, "deploy", "terraform")
	for _, dir := range []string{bin, module, filepath.Join(w.root, "home")} {
		require.NoError(t, os.MkdirAll(dir, 0o755))
	}

	self, err := os.Executable()
	require.NoError(t, err)
	for _, program := range []string{"gcloud", "terraform", "cloud-sql-proxy", "escrow-relayer", "set-tfvars", "psql",
		"make", "git"} {
		require.NoError(t, os.Symlink(self, filepath.Join(bin, program)))
	}

	here, err := os.Getwd()
	require.NoError(t, err)
	files, err := filepath.Glob("terraform/*.tf*")
	require.NoError(t, err)
	for _, name := range append(files, "scale.sh", "../Makefile", "../go.mod") {
		require.NoError(t, os.Symlink(filepath.Join(here, name), filepath.Join(w.root, "deploy", name)))
	}

	c := &cloud{Project: "fusion-prime", Region: "us-central1", Secrets: map[string][]string{},
		Services: map[string]*runService{}, Databases: map[string]*sqlInstance{}, Schema: map[string]int{},
		State: map[string]attributes{}, Proxies: map[string]sqlProxy{}, Topics: map[string]string{},
		Subscriptions: map[string]*subscription{}}
	require.NoError(t, c.save(w.file))
	w.env = append(os.Environ(), "FAKE_CLOUD="+w.file, "FAKE_TERRAFORM="+module, "SCALE_PAUSE=0.01",
		"PATH="+bin+":"+os.Getenv("PATH"), "HOME="+filepath.Join(w.root, "home"))
	w.env = slices.DeleteFunc(w.env, func(v string) bool {
		return strings.HasPrefix(v, "CLOUDSDK_") || strings.HasPrefix(v, "GOOGLE_") || strings.HasPrefix(v, "DATABASE_URL=")
	})

	return w
}

// newWalk has deployed a fleet with the module as it is, and what "What all pages use" tells.
func newWalk(t *testing.T) *walk {
	t.Helper()
	w := emptyWalk(t)
	c := w.cloud()
	c.Configured, c.Initialised, c.Images = c.Project, true, []string{oldImage, newImage}
	c.APIs = []string{"cloudresourcemanager.googleapis.com", "serviceusage.googleapis.com"}
	c.Secrets["escrow-relayer-rpc-urls"] = []string{"ENABLED"}
	require.NoError(t, c.save(w.file))
	w.sh("cp deploy/terraform/terraform.tfvars.example deploy/terraform/terraform.tfvars")
	w.sh("gcloud auth application-default login; (cd deploy/terraform && terraform apply)")
	require.Equal(t, "No changes. Your infrastructure matches the configuration.\n",
		w.sh(plan))

	c = w.cloud()
	const relayer, ddl = "escrow-relayer@fusion-prime.iam", "escrow-relayer-ddl@fusion-prime.iam"
	i := c.Databases["escrow-relayer"]
	i.Usage, i.Create, i.Tables = []string{relayer, ddl}, []string{ddl}, []string{relayer, ddl}
	i.Later = map[string][]string{ddl: {relayer}}
	c.Schema["escrow-relayer"] = 1
	require.NoError(t, c.save(w.file))
	w.sh(w.block("runbooks/README.md", "cloud-sql-proxy"))

	return w
}

// try runs commands in the shell, which keeps its variables, and reports whether the last one succeeded.
func (w *walk) try(commands string) (out string, ok bool) {
	w.t.Helper()
	// A page tells by a comment what is edited by hand.
	commands = regexp.MustCompile(`(?m)^# terraform\.tfvars: (.+)$`).ReplaceAllString(commands, "set-tfvars '$1'")
	commands = regexp.MustCompile(`(?m)^.*# on Kubernetes$`).ReplaceAllString(commands, "")
	cmd := exec.CommandContext(w.t.Context(), "bash", "-euc", commands+"\nenv -0 >"+w.root+"/env")
	cmd.Dir, cmd.Env = w.dir, w.env
	text, err := cmd.CombinedOutput()
	if err == nil {
		left, err := os.ReadFile(filepath.Join(w.root, "env"))
		require.NoError(w.t, err)
		w.env = strings.Split(strings.TrimSuffix(string(left), "\x00"), "\x00")
		for _, v := range w.env {
			if dir, ok := strings.CutPrefix(v, "PWD="); ok {
				w.dir = dir
			}
		}
	}

	return string(text), err == nil
}

func (w *walk) sh(commands string) string {
	w.t.Helper()
	out, ok := w.try(commands)
	require.True(w.t, ok, "%s\n%s", commands, out)

	return out
}

func (w *walk) refused(commands, because string) {
	w.t.Helper()
	out, ok := w.try(commands)
	require.False(w.t, ok, "%s\n%s", commands, out)
	require.Contains(w.t, out, because)
}

// block is the shell commands of a page that have some words in them.
func (w *walk) block(page, with string) string {
	w.t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(w.t, err)
	for _, b := range blocks(string(text), "sh") {
		if strings.Contains(b, with) {
			return b
		}
	}

	require.Fail(w.t, "no such commands", "%s: %s", page, with)

	return ""
}

// typed is such commands, whose last one is psql, with what the page's reader types there.
func (w *walk) typed(page, with, sql string) string {
	w.t.Helper()
	commands := w.block(page, with)
	require.Regexp(w.t, `(?m)^psql "[^\n]+$`, commands)
	text, err := os.ReadFile(page)
	require.NoError(w.t, err)
	for _, b := range blocks(string(text), "postgresql") {
		if strings.Contains(b, sql) {
			return commands + " <<'SQL'\n" + b + "\nSQL"
		}
	}

	require.Fail(w.t, "no such statements", "%s: %s", page, sql)

	return ""
}

// quoted is a command within the text of a page.
func (w *walk) quoted(page, begins string) string {
	w.t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(w.t, err)
	found := regexp.MustCompile("`(" + regexp.QuoteMeta(begins) + "[^`]*)`").FindSubmatch(text)
	require.NotNil(w.t, found, "%s: %s", page, begins)

	return string(found[1])
}

func (w *walk) cloud() *cloud {
	w.t.Helper()
	c, err := loadCloud(w.file)
	require.NoError(w.t, err)

	return c
}

// restarted is every instance started anew, as the platform does when it likes.
func (w *walk) restarted() error {
	c := w.cloud()
	require.Len(w.t, c.Services, 3)
	for _, name := range slices.Sorted(maps.Keys(c.Services)) {
		if err := c.start(c.Services[name]); err != nil {
			return err
		}
	}

	return nil
}

const plan = "(cd deploy/terraform && terraform plan)"

func TestProviderChangeWordForWord(t *testing.T) {
	t.Parallel()
	const page = "runbooks/provider-change.md"
	w := newWalk(t)
	c := w.cloud()
	for range 8 { // a number of two digits comes next, which is not the last one in the order of texts
		c.Secrets["escrow-relayer-rpc-urls"] = append(c.Secrets["escrow-relayer-rpc-urls"], "ENABLED")
	}

	require.NoError(t, c.save(w.file))
	w.sh(w.block(page, "escrow-relayer doctor"))
	w.env = append(w.env, "NEW_RPC_URLS=https://new.example/KEY")
	w.sh(w.block(page, "secrets versions add"))
	w.sh(`[[ $VERSION = 10 ]]`)
	for name, s := range w.cloud().Services {
		require.Equal(t, "escrow-relayer-rpc-urls:1", s.Secrets["RPC_URLS"], "%s: nothing happens yet", name)
	}

	w.sh(w.block(page, "--update-secrets"))
	for name, s := range w.cloud().Services {
		require.Equal(t, "escrow-relayer-rpc-urls:10", s.Secrets["RPC_URLS"], name)
	}

	require.Contains(t, w.sh(plan), `update google_cloud_run_v2_service.relayer["0"] template`,
		"the next apply would go back to the old one")
	w.sh(`set-tfvars 'rpc_urls_version = "10"'`)
	require.Contains(t, w.sh(plan), "No changes.")
	w.sh(strings.Replace(w.quoted(page, "gcloud secrets versions disable"), "OLD", "1", 1))
	require.NoError(t, w.restarted())

	// What the page warns of: the version that the services name.
	w.sh("gcloud secrets versions disable 10 --secret escrow-relayer-rpc-urls")
	require.ErrorContains(t, w.restarted(), "is in DISABLED state")
	w.refused(`gcloud run services update escrow-relayer-0 --region "$REGION" --update-secrets=RPC_URLS=escrow-relayer-rpc-urls:1`,
		"is in DISABLED state")
}

func TestSchemaUpgradeWordForWord(t *testing.T) {
	t.Parallel()
	const page = "runbooks/schema-upgrade.md"
	w := newWalk(t)
	w.sh(w.quoted(page, "gcloud sql backups create"))
	w.refused("escrow-relayer migrate", "may not change tables")
	w.sh(w.block(page, "escrow-relayer migrate"))
	require.Equal(t, 2, w.cloud().Schema["escrow-relayer"])
	w.env = append(w.env, "IMAGE="+newImage, "PREVIOUS_IMAGE="+oldImage)
	w.sh(w.block(page, `--image="$IMAGE"`))
	images := func() (of []string) {
		c := w.cloud()
		for _, name := range slices.Sorted(maps.Keys(c.Services)) {
			of = append(of, c.Services[name].Image)
		}

		return of
	}
	require.Equal(t, []string{newImage, newImage, newImage}, images())
	require.Contains(t, w.sh(plan), "No changes.", "a release by gcloud is not taken back")
	w.sh(`set-tfvars 'image = "` + newImage + `"'`)
	require.Contains(t, w.sh(plan), "No changes.", "nor rolled by Terraform")
	w.sh("(cd deploy/terraform && terraform apply)")
	require.Equal(t, []string{newImage, newImage, newImage}, images())

	w.sh(w.block(page, `--image="$PREVIOUS_IMAGE"`))
	require.Equal(t, []string{oldImage, newImage, newImage}, images(), "one instance after the other")
	w.refused(`gcloud run services update escrow-relayer-1 --region "$REGION" --container=relayer --image=nothing:v9`, "not found")
	require.Equal(t, []string{oldImage, newImage, newImage}, images(), "a release that does not come up changes nothing")
}

func TestRestoreWordForWord(t *testing.T) {
	t.Parallel()
	const page = "runbooks/restore.md"
	const restored = "fusion-prime:us-central1:escrow-relayer-restored"
	w := newWalk(t)
	w.sh(w.block(page, "scale.sh stop"))
	w.sh(w.block(page, "gcloud sql instances clone"))
	c := w.cloud()
	require.Equal(t, *c.Databases["escrow-relayer"], *c.Databases["escrow-relayer-restored"], "what protected the old one")
	connect := w.block(page, "--port 5435")
	proxy, _, _ := strings.Cut(connect, " &\n")
	w.refused(proxy, "has no roles/cloudsql.client on instance escrow-relayer-restored")

	// Without the first step Terraform wants to delete the database.
	before := w.cloud()
	tfvars := filepath.Join(w.root, "deploy", "terraform", "terraform.tfvars")
	was, err := os.ReadFile(tfvars)
	require.NoError(t, err)
	w.sh(`set-tfvars 'database_instance = "` + restored + `"'`)
	require.Contains(t, w.sh(plan), "destroy google_sql_database_instance.this[0]")
	w.refused("(cd deploy/terraform && terraform apply)", "cannot destroy")
	require.NoError(t, before.save(w.file))
	require.NoError(t, os.WriteFile(tfvars, was, 0o600))

	out := w.sh(w.block(page, "terraform state rm"))
	require.NotRegexp(t, `(?m)^(create|destroy) `, out)
	replaced := regexp.MustCompile(`(?m)^replace ([a-z_]+)\.`).FindAllStringSubmatch(out, -1)
	require.Len(t, replaced, 4, out)
	for _, r := range replaced {
		require.Equal(t, "google_project_iam_member", r[1], out)
	}

	c = w.cloud()
	require.True(t, c.Databases["escrow-relayer"].DeletionProtection, "the old one stays")
	for name, s := range c.Services {
		require.Equal(t, restored, s.Env["CLOUDSQL_INSTANCE"], name)
		require.Equal(t, "0", s.Scaling, "%s does not start yet", name)
	}

	start := w.block(page, "scale.sh start")
	w.sh(connect)
	w.sh(start)
	require.Contains(t, w.sh(plan), "No changes.")
	for name, s := range w.cloud().Services {
		require.Empty(t, s.Down, name)
		require.Equal(t, "1", s.Scaling, name)
	}
}

// A fleet with senders has a login more, which a clone has already.
func TestRestoreWithSendersWordForWord(t *testing.T) {
	t.Parallel()
	const page, keys = "runbooks/restore.md", "escrow-relayer-keys@fusion-prime.iam"
	w := newWalk(t)
	w.sh(`set-tfvars 'senders = ["arbiter"]'; (cd deploy/terraform && terraform apply)`)
	for _, secret := range []string{"senders", "policy"} {
		w.sh("echo {} | gcloud secrets versions add escrow-relayer-" + secret + " --data-file=-")
	}

	c := w.cloud()
	i := c.Databases["escrow-relayer"]
	i.Usage, i.Tables = append(i.Usage, keys), append(i.Tables, keys)
	require.NoError(t, c.save(w.file))
	w.sh(`set-tfvars 'key_services = 2'; (cd deploy/terraform && terraform apply)`)

	w.sh(w.block(page, "scale.sh stop"))
	w.sh(w.block(page, "gcloud sql instances clone"))
	move := w.block(page, "terraform state rm")
	before := w.cloud()
	tfvars := filepath.Join(w.root, "deploy", "terraform", "terraform.tfvars")
	was, err := os.ReadFile(tfvars)
	require.NoError(t, err)
	w.refused(move, "google_sql_user.keys[0]: Error 409: it already exists")
	require.NoError(t, before.save(w.file))
	require.NoError(t, os.WriteFile(tfvars, was, 0o600))

	withSenders := regexp.MustCompile(`(?m)^# (terraform .*google_sql_user\.keys.*)$`)
	require.Len(t, withSenders.FindAllString(move, -1), 2)
	out := w.sh(withSenders.ReplaceAllString(move, "$1"))
	require.NotRegexp(t, `(?m)^(create|destroy) `, out)
	require.Len(t, regexp.MustCompile(`(?m)^replace google_project_iam_member\.`).FindAllString(out, -1), 6, out)
	w.sh(w.block(page, "--port 5435"))
	w.sh(w.block(page, "scale.sh start"))
	require.Contains(t, w.sh(plan), "No changes.")
	w.serving()
}
