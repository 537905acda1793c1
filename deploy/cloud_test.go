package deploy

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestMain lets the test binary stand in for the programs that the runbooks call: by its name, with FAKE_CLOUD set.
func TestMain(m *testing.M) {
	if file := os.Getenv("FAKE_CLOUD"); file != "" {
		os.Exit(pretend(file, filepath.Base(os.Args[0]), os.Args[1:]))
	}

	os.Exit(m.Run())
}

// cloud is Google Cloud, Terraform's state and the database's sessions as far as the runbooks touch
// them, with what those enforce: a command that they would refuse, or that would do harm, fails. It
// is kept in a file, since each command is a process.
type cloud struct {
	Project, Region string
	Configured      string              // the project of `gcloud config`
	APIs            []string            // that are enabled
	Repositories    []string            // of images
	Pushable        []string            // hosts for which docker has credentials
	Secrets         map[string][]string // by name: states of the versions 1, 2, …
	Images          []string
	Services        map[string]*runService
	Databases       map[string]*sqlInstance
	Schema          map[string]int        // by database instance: version of the last migration
	State           map[string]attributes // Terraform's, by address
	Proxies         map[string]sqlProxy   // by port
	Initialised     bool                  // Terraform is
	Topics          map[string]string     // by name: who may publish, besides the fleet's accounts
	Subscriptions   map[string]*subscription
	Log             []string // the commands, as they came
}

type runService struct {
	Image, Ingress string
	Account        string // that it runs as
	Env            map[string]string
	Secrets        map[string]string // variable: secret:version
	Scaling        string            // auto, or a number
	Started        time.Time         // when its newest ready revision was started
	Down           string            // why its instance does not start; empty: it runs
}

type sqlInstance struct {
	DeletionProtection, RetainBackups bool
	BackupLocation                    string
	Databases, Users                  []string
	Backups                           int
	Password                          bool // postgres has one

	Usage, Create []string            // logins, of the schema public
	Later         map[string][]string // by login: who may read and write the tables that it makes
	Tables        []string            // logins that may read and write the tables that there are
}

type subscription struct {
	Topic, DeadLetters string
	Ordered            bool
	Consumers          string // who may take messages, besides whom the project's owner lets
}

type sqlProxy struct {
	Instance, Account string
	HealthPort        string // empty: nobody can wait for it
	Ready             bool   // somebody has waited until it listened
}

// refusal is what a program says on its way out.
type refusal struct{ text string }

func (r refusal) Error() string { return r.text }

func refuse(format string, args ...any) error { return refusal{fmt.Sprintf(format, args...)} }

func loadCloud(file string) (*cloud, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}

	c := &cloud{}

	return c, json.Unmarshal(text, c)
}

func (c *cloud) save(file string) error {
	text, err := json.MarshalIndent(c, "", " ")
	if err != nil {
		return err
	}

	// At once: a proxy in the background writes too.
	next := fmt.Sprintf("%s.%d", file, os.Getpid())
	if err := os.WriteFile(next, text, 0o600); err != nil {
		return err
	}

	return os.Rename(next, file)
}

// pretend is one program, run once. What failed changes nothing.
func pretend(file, program string, args []string) int {
	c, err := loadCloud(file)
	if err == nil {
		c.Log = append(c.Log, program+" "+strings.Join(args, " "))
		err = map[string]func([]string) error{
			"gcloud": c.gcloud, "terraform": c.terraform, "cloud-sql-proxy": c.sqlProxy, "escrow-relayer": c.relayer,
			"set-tfvars": setTfvars, "psql": c.psql, "make": c.make, "git": gitDescribe,
		}[program](args)
	}

	if err == nil {
		err = c.save(file)
	}

	if err != nil {
		fmt.Fprintf(os.Stderr, "%s %s: %v\n", program, strings.Join(args, " "), err)
		return 1
	}

	return 0
}

// parsed splits arguments into flags and the rest, and refuses flags that the command does not have.
// A name that ends with = wants a value.
func parsed(args []string, known ...string) (flags map[string]string, rest []string, err error) {
	flags = map[string]string{}
	for len(args) > 0 {
		a := args[0]
		args = args[1:]
		name, value, has := strings.Cut(strings.TrimLeft(a, "-"), "=")
		switch {
		case !strings.HasPrefix(a, "--"):
			rest = append(rest, a)
		case slices.Contains(known, name+"="):
			if !has {
				if len(args) == 0 {
					return nil, nil, refuse("argument --%s: expected one argument", name)
				}

				value, args = args[0], args[1:]
			}

			flags[name] = value
		case slices.Contains(known, name) && !has:
			flags[name] = "true"
		default:
			return nil, nil, refuse("unrecognized arguments: %s", a)
		}
	}

	return flags, rest, nil
}

// gcloud's commands by their first words. What a command needs of the project is checked before it runs.
func (c *cloud) gcloud(args []string) error {
	for _, known := range []struct {
		words string
		api   string // that has to be enabled
		run   func([]string) error
	}{
		{"config set project", "", c.configure},
		{"auth application-default login", "", c.login},
		{"auth configure-docker", "", c.configureDocker},
		{"services enable", "", c.enable},
		{"projects describe", "cloudresourcemanager", c.describeProject},
		{"artifacts repositories create", "artifactregistry", c.createRepository},
		{"run services update", "run", c.updateService},
		{"run services proxy", "run", func([]string) error {
			return refuse("the service has ingress internal: it is not reached from here")
		}},
		{"secrets versions", "secretmanager", c.secrets},
		{"sql instances clone", "sqladmin", c.cloneDatabase},
		{"sql instances patch", "sqladmin", c.patchDatabase},
		{"sql users set-password", "sqladmin", c.setPassword},
		{"sql backups create", "sqladmin", c.backUp},
		{"kms keys versions get-public-key", "cloudkms", c.publicKey},
		{"pubsub topics", "pubsub", c.topics},
		{"pubsub subscriptions", "pubsub", c.subscriptions},
	} {
		n := len(strings.Fields(known.words))
		if len(args) < n || strings.Join(args[:n], " ") != known.words {
			continue
		}

		if known.api != "" && !c.enabled(known.api) {
			return refuse("API [%s.googleapis.com] not enabled on project [%s]", known.api, c.Project)
		}

		return known.run(args[n:])
	}

	return refuse("Invalid choice: %q", strings.Join(args, " "))
}

func (c *cloud) enabled(api string) bool { return slices.Contains(c.APIs, api+".googleapis.com") }

// here reports whether a command is about the project: by its flag, or by what is configured.
func (c *cloud) here(flags map[string]string) error {
	if of := cmp.Or(flags["project"], c.Configured); of != c.Project {
		return refuse("The [project] resource is not properly specified: %q", of)
	}

	return nil
}

func (c *cloud) configure(args []string) error {
	if len(args) != 1 || args[0] != c.Project {
		return refuse("you do not have access to project %q", args)
	}

	c.Configured = args[0]

	return nil
}

func (c *cloud) enable(args []string) error {
	for _, api := range args {
		if !regexp.MustCompile(`^[a-z]+\.googleapis\.com$`).MatchString(api) {
			return refuse("Service %q not found", api)
		}

		c.APIs = append(c.APIs, api)
	}

	return c.here(nil)
}

func (c *cloud) describeProject(args []string) error {
	f, rest, err := parsed(args, "format=")
	if err != nil || len(rest) != 1 || rest[0] != c.Project || f["format"] != "value(projectNumber)" {
		return refuse("projects describe %q: %v", args, err)
	}

	fmt.Println("123456789012")

	return nil
}

func (c *cloud) createRepository(args []string) error {
	f, rest, err := parsed(args, "repository-format=", "location=", "project=")
	if err != nil {
		return err
	}

	if len(rest) != 1 || f["location"] == "" || f["repository-format"] != "docker" {
		return refuse("repository %q", args)
	}

	c.Repositories = append(c.Repositories, fmt.Sprintf("%s-docker.pkg.dev/%s/%s", f["location"], c.Project, rest[0]))

	return c.here(f)
}

func (c *cloud) configureDocker(args []string) error {
	c.Pushable = append(c.Pushable, args...)
	return nil
}

// make is `make build`, or `make push`, which builds the image and pushes it. Both need the repository's root.
func (c *cloud) make(args []string) error {
	if _, err := os.Stat("go.mod"); err != nil {
		return refuse("the folder is not the repository's root: %v", err)
	}

	if slices.Equal(args, []string{"build"}) {
		return nil
	}

	if len(args) != 3 || args[0] != "push" || args[1] != "ARCH=amd64" { // which Cloud Run runs
		return refuse("make %q", args)
	}

	image, ok := strings.CutPrefix(args[2], "IMAGE=")
	host, _, _ := strings.Cut(image, "/")
	name, tag, _ := strings.Cut(image, ":")
	switch {
	case !ok || tag == "":
		return refuse("invalid reference format: %q", image)
	case !slices.Contains(c.Pushable, host):
		return refuse("denied: Unauthenticated request to %s", host)
	case !slices.Contains(c.Repositories, filepath.Dir(name)):
		return refuse("name unknown: Repository %q not found", filepath.Dir(name))
	}

	c.Images = append(c.Images, image)

	return nil
}

func (c *cloud) publicKey(args []string) error {
	f, rest, err := parsed(args, "key=", "keyring=", "location=", "output-file=")
	if err != nil {
		return err
	}

	ring := c.State["google_kms_key_ring.senders[0]"]
	key := c.State[fmt.Sprintf("google_kms_crypto_key.sender[%q]", f["key"])]
	if !slices.Equal(rest, []string{"1"}) || key == nil || ring["name"] != f["keyring"] ||
		ring["location"] != f["location"] {
		return refuse("NOT_FOUND: CryptoKeyVersion %q", args)
	}

	return os.WriteFile(f["output-file"], []byte("-----BEGIN PUBLIC KEY-----\n"), 0o600)
}

// topicExists says so of those that Terraform made, and of those made by hand.
func (c *cloud) topicExists(name string) bool {
	_, byHand := c.Topics[name]
	return byHand || c.made("google_pubsub_topic.", name)
}

// made reports whether Terraform made something of that name.
func (c *cloud) made(prefix, name string) bool {
	for address, has := range c.State {
		if strings.HasPrefix(address, prefix) && has["name"] == name {
			return true
		}
	}

	return false
}

// topics made by hand, and who may publish to them.
func (c *cloud) topics(args []string) error {
	f, rest, err := parsed(args[1:], "message-retention-duration=", "member=", "role=", "message=", "project=")
	if err != nil {
		return err
	}

	if err := c.here(f); err != nil || len(rest) != 1 {
		return refuse("%q: %v", rest, err)
	}

	switch verb := args[0]; {
	case verb == "create" && !c.topicExists(rest[0]):
		c.Topics[rest[0]] = ""
	case verb == "publish" && c.topicExists(rest[0]) && f["message"] != "":
	case verb == "add-iam-policy-binding" && c.topicExists(rest[0]) && f["role"] == "roles/pubsub.publisher":
		c.Topics[rest[0]] = f["member"]
	default:
		return refuse("topics %q", args)
	}

	return nil
}

func (c *cloud) subscriptions(args []string) error {
	f, rest, err := parsed(args[1:], "topic=", "enable-message-ordering", "enable-exactly-once-delivery", "ack-deadline=",
		"message-retention-duration=", "retain-acked-messages", "expiration-period=", "message-filter=", "dead-letter-topic=",
		"max-delivery-attempts=", "member=", "role=", "auto-ack", "project=")
	if err != nil {
		return err
	}

	if err := c.here(f); err != nil || len(rest) != 1 {
		return refuse("%q: %v", rest, err)
	}

	s := c.Subscriptions[rest[0]]
	switch verb, dead := args[0], f["dead-letter-topic"]; {
	case verb == "create" && s == nil && c.topicExists(f["topic"]) && (dead == "" || c.topicExists(dead)):
		c.Subscriptions[rest[0]] = &subscription{Topic: f["topic"], DeadLetters: dead,
			Ordered: f["enable-message-ordering"] != ""}
	case verb == "pull" && c.made("google_pubsub_subscription.", rest[0]):
	case verb == "add-iam-policy-binding" && s != nil && f["role"] == "roles/pubsub.subscriber":
		s.Consumers = f["member"]
	default:
		return refuse("Resource not found, or it exists already: %q", args)
	}

	return nil
}

func gitDescribe(args []string) error {
	if !slices.Equal(args, []string{"describe", "--tags", "--always"}) {
		return refuse("%q", args)
	}

	fmt.Println("v1.0.0")

	return nil
}

// secretReference is what Cloud Run takes: a secret's name and a number (or latest), not a resource's full name.
var secretReference = regexp.MustCompile(`^([A-Za-z0-9_-]+):(latest|[0-9]+)$`)

// readable says why an instance that needs a version of a secret does not start; nil: it can be read.
func (c *cloud) readable(reference string) error {
	m := secretReference.FindStringSubmatch(reference)
	if m == nil {
		return refuse("%q is not a secret and its version", reference)
	}

	states := c.Secrets[m[1]]
	n := len(states)
	if m[2] != "latest" {
		_, _ = fmt.Sscan(m[2], &n)
	}

	if n < 1 || n > len(states) {
		return refuse("Secret Version [%s] not found", reference)
	}

	if states[n-1] != "ENABLED" {
		return refuse("Secret Version [%s] is in %s state", reference, states[n-1])
	}

	return nil
}

// start starts a service's instance, as a new revision does, a crash, or the platform when it moves it.
func (c *cloud) start(s *runService) error {
	for _, reference := range s.Secrets {
		err := c.readable(reference)
		if secret, _, _ := strings.Cut(reference, ":"); err == nil && !c.mayRead(s.Account, secret) {
			err = refuse("Permission denied on secret %s for Revision service account %s", secret, s.Account)
		}

		if err != nil {
			s.Down = err.Error()
			return err
		}
	}

	if !slices.Contains(c.Images, s.Image) {
		s.Down = "Image '" + s.Image + "' not found"
		return refuse("%s", s.Down)
	}

	s.Down, s.Started = "", time.Now()

	return nil
}

// mayRead reports whether an account has the right to read the values of a secret.
func (c *cloud) mayRead(account, secret string) bool {
	for address, has := range c.State {
		of, _ := has["secret_id"].(string)
		if strings.HasPrefix(address, "google_secret_manager_secret_iam_member.") && c.State[of]["secret_id"] == secret &&
			has["role"] == "roles/secretmanager.secretAccessor" && has["member"] == "serviceAccount:"+account {
			return true
		}
	}

	return false
}

func (c *cloud) updateService(args []string) error {
	f, rest, err := parsed(args, "region=", "project=", "container=", "image=", "update-secrets=", "update-env-vars=",
		"update-labels=", "scaling=", "quiet")
	if err != nil {
		return err
	}

	if err := c.here(f); err != nil {
		return err
	}

	if f["region"] != c.Region {
		return refuse("Cannot find service in region %q", f["region"])
	}

	if len(rest) != 1 || c.Services[rest[0]] == nil {
		return refuse("Cannot find service %q", rest)
	}

	was := c.Services[rest[0]]
	next := *was
	next.Secrets, next.Env = maps.Clone(was.Secrets), maps.Clone(was.Env)
	if f["container"] != "" && f["container"] != "relayer" && f["container"] != "collector" {
		return refuse("the service has no container %q", f["container"])
	}

	if f["image"] != "" {
		next.Image = f["image"]
	}

	for flag, into := range map[string]map[string]string{"update-secrets": next.Secrets, "update-env-vars": next.Env} {
		if f[flag] == "" {
			continue
		}

		name, value, ok := strings.Cut(f[flag], "=")
		if !ok {
			return refuse("--%s=%s: expected KEY=VALUE", flag, f[flag])
		}

		into[name] = value
	}

	if f["scaling"] != "" {
		next.Scaling = f["scaling"]
	}

	// A revision that does not become ready leaves the old one as it is.
	if err := c.start(&next); err != nil {
		return err
	}

	c.Services[rest[0]] = &next

	return nil
}

func (c *cloud) secrets(args []string) error {
	f, rest, err := parsed(args[1:], "secret=", "project=", "data-file=", "format=")
	if err != nil {
		return err
	}

	if err := c.here(f); err != nil || len(rest) != 1 {
		return refuse("%q: %v", rest, err)
	}

	switch verb := args[0]; verb {
	case "add":
		file := f["data-file"]
		if file == "-" {
			file = "/dev/stdin"
		}

		if value, err := os.ReadFile(file); err != nil || len(value) == 0 {
			return refuse("--data-file=%s: %d bytes, %v", file, len(value), err)
		}

		if c.Secrets[rest[0]] == nil {
			return refuse("Secret [%s] not found", rest[0])
		}

		c.Secrets[rest[0]] = append(c.Secrets[rest[0]], "ENABLED")
		n := len(c.Secrets[rest[0]])
		fmt.Fprintf(os.Stderr, "Created version [%d] of the secret [%s].\n", n, rest[0])
		if f["format"] == "value(name)" { // the resource's full name
			fmt.Printf("projects/123456789012/secrets/%s/versions/%d\n", rest[0], n)
		}

		return nil
	case "disable":
		n := 0
		if _, err := fmt.Sscan(rest[0], &n); err != nil || n < 1 || n > len(c.Secrets[f["secret"]]) {
			return refuse("Secret Version [%s:%s] not found", f["secret"], rest[0])
		}

		c.Secrets[f["secret"]][n-1] = "DISABLED"

		return nil
	default:
		return refuse("Invalid choice: %q", verb)
	}
}

func (c *cloud) cloneDatabase(args []string) error {
	f, rest, err := parsed(args, "point-in-time=", "project=")
	if err != nil {
		return err
	}

	if _, err := time.Parse(time.RFC3339, f["point-in-time"]); err != nil {
		return refuse("--point-in-time: %v", err)
	}

	if len(rest) != 2 || c.Databases[rest[0]] == nil || c.Databases[rest[1]] != nil || f["project"] != c.Project {
		return refuse("clone %q in %q: the source has to exist, and the destination must not", rest, f["project"])
	}

	// What protects the source does not protect the clone.
	clone := *c.Databases[rest[0]]
	clone.DeletionProtection, clone.RetainBackups, clone.BackupLocation, clone.Backups = false, false, "", 0
	c.Databases[rest[1]] = &clone // its lists are its own once this is written to the file
	c.Schema[rest[1]] = c.Schema[rest[0]]

	return nil
}

func (c *cloud) patchDatabase(args []string) error {
	f, rest, err := parsed(args, "project=", "deletion-protection", "retain-backups-on-delete", "backup-location=")
	if err != nil {
		return err
	}

	if len(rest) != 1 || c.Databases[rest[0]] == nil || f["project"] != c.Project {
		return refuse("no instance %q in project %q", rest, f["project"])
	}

	i := c.Databases[rest[0]]
	i.DeletionProtection = i.DeletionProtection || f["deletion-protection"] != ""
	i.RetainBackups = i.RetainBackups || f["retain-backups-on-delete"] != ""
	if f["backup-location"] != "" {
		i.BackupLocation = f["backup-location"]
	}

	return nil
}
