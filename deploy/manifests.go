package deploy

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"text/template"

	"github.com/fusion-prime/escrow-relayer/partition"
)

var (
	//go:embed cloudrun/service.yaml.tmpl
	serviceTemplate string
	//go:embed cloudrun/monitoring.yaml
	monitoring string

	templates = template.Must(template.New("service").Option("missingkey=error").
			Funcs(template.FuncMap{"json": quote}).Parse(serviceTemplate))
)

// Defaults of ManifestInput.
const (
	DefaultPrefix         = "escrow-relayer"
	DefaultStrategy       = "modulo"
	DefaultCPU            = "1"
	DefaultMemory         = "512Mi" // the minimum of the second-generation environment
	DefaultCollectorImage = "us-docker.pkg.dev/cloud-ops-agents-artifacts/cloud-run-gmp-sidecar/cloud-run-gmp-sidecar:1.2.0"
)

// lockWait is how long a new revision waits for the old one to leave. Cloud Run may keep an
// instance without traffic for 15 minutes.
const lockWait = "20m"

// ManifestInput describes the fleet to deploy. Fields without a default are required.
type ManifestInput struct {
	Prefix         string // of the names of the services and instances: PREFIX-0, …; default escrow-relayer
	Project        string // of the topics; secrets belong to the services' project
	Region         string
	Image          string
	ServiceAccount string // e-mail

	Partitions int
	Strategy   string // modulo or consistent; default modulo

	ChainID          int64
	Factory          string
	StartBlock       int64
	Topic            string
	RetractionsTopic string // optional
	CloudSQLInstance string // project:region:instance; optional: without it DATABASE_URL is used as it is

	// Env are further variables of the relayer, the same for every instance. Those that carry
	// secrets are refused here.
	Env map[string]string
	// Secrets are variables with values in Secret Manager: variable to secret:version, or
	// secret, which is version 1. Default: DATABASE_URL and RPC_URLS from PREFIX-database-url and
	// PREFIX-rpc-urls. `latest` is refused: it follows a new version even if that one is disabled,
	// so disabling a bad version would take down every instance that restarts.
	Secrets map[string]string

	CPU, Memory string // limits of the relayer; default 1 and 512Mi

	Commands *CommandsInput // for the first services, which act on commands; nil: read-only fleet
}

// CommandsInput describes the services that act on commands. They have the keys and run as a
// separate account, so that the other services cannot sign.
type CommandsInput struct {
	Services       int    // number of these services; two or more, so that one takes over when another dies
	ServiceAccount string // e-mail
	Subscription   string // of commands
	RepliesTopic   string
	KeeperSender   string // optional: an address in the senders file

	// secret:version, or secret, which is version 1. Default: PREFIX-senders and PREFIX-policy.
	// Their separate login is in PREFIX-keys-database-url.
	SendersSecret, PolicySecret string
}

// Manifest is a Cloud Run service in Knative's form, ready for `gcloud run services replace`.
type Manifest struct {
	Name      string
	Partition int
	YAML      []byte
}

type variable struct{ Name, Value string }

type secretVariable struct{ Name, Secret, Version string }

// serviceData is the input of service.yaml.tmpl.
type serviceData struct {
	ManifestInput
	Name      string
	Partition int
	Env       []variable
	SecretEnv []secretVariable
	// CollectorImage is Google's Prometheus sidecar.
	CollectorImage string
	Files          []secretFile
}

// secretFile is a secret as a file: Name.json in a separate folder, as Cloud Run mounts it.
type secretFile struct{ Name, Folder, Secret, Version string }

// filesFolder is where secrets are mounted.
const filesFolder = "/etc/escrow-relayer"

// pinned splits secret:version; the default version is the first.
func pinned(ref string) (secret, version string) {
	m := secretRef.FindStringSubmatch(ref)
	return m[1], cmp.Or(m[2], "1")
}

// Manifests creates one service per partition. The error names every mistake.
func Manifests(in ManifestInput) ([]Manifest, error) {
	in = in.withDefaults()
	if err := in.check(); err != nil {
		return nil, err
	}

	var secrets []secretVariable
	for _, name := range slices.Sorted(maps.Keys(in.Secrets)) {
		secret, version := pinned(in.Secrets[name])
		secrets = append(secrets, secretVariable{name, secret, version})
	}

	manifests := make([]Manifest, in.Partitions)
	for p := range in.Partitions {
		name := in.Prefix + "-" + strconv.Itoa(p)
		data := serviceData{in, name, p, in.env(name, p), slices.Clone(secrets), DefaultCollectorImage, nil}
		if in.Commands != nil && p < in.Commands.Services {
			in.Commands.equip(&data)
		}

		var b bytes.Buffer
		if err := templates.ExecuteTemplate(&b, "service", data); err != nil {
			return nil, fmt.Errorf("write the manifest of %s: %w", name, err)
		}

		manifests[p] = Manifest{name, p, b.Bytes()}
	}

	return manifests, nil
}

// equip gives a service the keys: another account and login, the two files, and the subscription of
// commands.
func (c *CommandsInput) equip(s *serviceData) {
	s.ServiceAccount = c.ServiceAccount
	for i := range s.SecretEnv {
		if x := &s.SecretEnv[i]; x.Name == "DATABASE_URL" {
			x.Secret, x.Version = s.Prefix+"-keys-database-url", "1"
		}
	}

	for _, f := range []struct{ name, variable, ref string }{
		{"senders", "SENDERS_FILE", c.SendersSecret}, {"policy", "COMMANDS_POLICY_FILE", c.PolicySecret},
	} {
		secret, version := pinned(f.ref)
		file := secretFile{f.name, filesFolder + "/" + f.name, secret, version}
		s.Files = append(s.Files, file)
		s.Env = append(s.Env, variable{f.variable, file.Folder + "/" + f.name + ".json"})
	}

	s.Env = append(s.Env, variable{"COMMANDS_SUBSCRIPTION_ID", c.Subscription},
		variable{"REPLIES_TOPIC_ID", c.RepliesTopic})
	if c.KeeperSender != "" {
		s.Env = append(s.Env, variable{"KEEPER_SENDER", c.KeeperSender})
	}
}

// Monitoring is the configuration of the collector, for the secret PREFIX-monitoring.
func Monitoring() []byte { return []byte(monitoring) }

func (in ManifestInput) withDefaults() ManifestInput {
	in.Prefix = cmp.Or(in.Prefix, DefaultPrefix)
	in.Strategy = cmp.Or(in.Strategy, DefaultStrategy)
	in.CPU = cmp.Or(in.CPU, DefaultCPU)
	in.Memory = cmp.Or(in.Memory, DefaultMemory)
	if in.Secrets == nil {
		in.Secrets = map[string]string{"DATABASE_URL": in.Prefix + "-database-url", "RPC_URLS": in.Prefix + "-rpc-urls"}
	}

	if in.Commands != nil {
		c := *in.Commands
		c.SendersSecret = cmp.Or(c.SendersSecret, in.Prefix+"-senders")
		c.PolicySecret = cmp.Or(c.PolicySecret, in.Prefix+"-policy")
		in.Commands = &c
	}

	return in
}

// env are the plain variables of one instance: its place in the fleet, the common ones, and the
// added ones.
func (in ManifestInput) env(name string, partition int) []variable {
	vars := []variable{
		{"INSTANCE_ID", name}, {"PARTITION_NUMBER", strconv.Itoa(partition)},
		{"FLEET", in.Prefix},
		{"TOTAL_PARTITIONS", strconv.Itoa(in.Partitions)},
		{"PARTITION_STRATEGY", in.Strategy},
		{"CHAIN_ID", strconv.FormatInt(in.ChainID, 10)}, {"FACTORY_ADDRESS", in.Factory},
		{"START_BLOCK", strconv.FormatInt(in.StartBlock, 10)},
		{"PUBSUB_PROJECT_ID", in.Project}, {"PUBSUB_TOPIC_ID", in.Topic},
	}
	if in.RetractionsTopic != "" {
		vars = append(vars, variable{"RETRACTIONS_TOPIC_ID", in.RetractionsTopic})
	}

	if in.CloudSQLInstance != "" {
		vars = append(vars, variable{"CLOUDSQL_INSTANCE", in.CloudSQLInstance}, variable{"CLOUDSQL_IAM_AUTH", "true"})
	}

	vars = append(vars, variable{"INSTANCE_LOCK_WAIT", lockWait}, variable{"MIGRATE_ON_START", "false"},
		variable{"LOG_FORMAT", "json"})
	for _, k := range slices.Sorted(maps.Keys(in.Env)) {
		at := slices.IndexFunc(vars, func(v variable) bool { return v.Name == k })
		if at < 0 {
			vars = append(vars, variable{k, in.Env[k]})
		} else {
			vars[at].Value = in.Env[k] // of INSTANCE_LOCK_WAIT, MIGRATE_ON_START or LOG_FORMAT: check refuses the others
		}
	}

	return vars
}

var (
	// with -NNNN within Cloud Run's 49 characters and the relayer's 48
	servicePrefix = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$`)
	secretRef     = regexp.MustCompile(`^([A-Za-z0-9_-]{1,255})(?::([1-9][0-9]*))?$`)
	address       = regexp.MustCompile(`^0x[0-9a-fA-F]{40}$`)
	factories     = regexp.MustCompile(`^0x[0-9a-fA-F]{40}(@\d+)?(,0x[0-9a-fA-F]{40}(@\d+)?)*$`)
	accountEmail  = regexp.MustCompile(`^[^@\s]+@[^@\s]+\.iam\.gserviceaccount\.com$`)
	connection    = regexp.MustCompile(`^([a-z0-9.-]+:)?[a-z0-9-]+:[a-z0-9-]+:[a-z0-9-]+$`)
	environment   = regexp.MustCompile(`^[A-Z][A-Z0-9_]*$`)

	// secretVariables may carry a credential in a URL: never a plain variable, which every identity
	// with run.services.get can read.
	secretVariables = []string{"RPC_URL", "RPC_URLS", "DATABASE_URL", "SESSION_DATABASE_URL"}
	// ownVariables are set from other fields, and PORT by Cloud Run.
	ownVariables = []string{"INSTANCE_ID", "FLEET", "PARTITION_NUMBER", "TOTAL_PARTITIONS", "PARTITION_STRATEGY",
		"CHAIN_ID", "FACTORY_ADDRESS", "START_BLOCK",
		"PUBSUB_PROJECT_ID", "PUBSUB_TOPIC_ID", "RETRACTIONS_TOPIC_ID", "CLOUDSQL_INSTANCE", "CLOUDSQL_IAM_AUTH", "PORT"}
	// keyVariables would give every service the keys, or the subscription of commands: they are set
	// from Commands.
	keyVariables = []string{"SENDERS_FILE", "COMMANDS_POLICY_FILE", "COMMANDS_SUBSCRIPTION_ID", "COMMANDS_HTTP",
		"COMMANDS_PORT", "REPLIES_TOPIC_ID", "KEEPER_SENDER"}
)

func (in ManifestInput) check() error {
	var problems []error
	want := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	want(servicePrefix.MatchString(in.Prefix),
		"prefix %q: use up to 40 lower-case letters, digits and dashes, beginning with a letter", in.Prefix)
	want(in.Project != "", "project: name the Google Cloud project of the topics")
	want(in.Region != "", "region: name the Cloud Run region")
	want(in.Image != "", "image: name the image of the relayer, best by digest")
	want(accountEmail.MatchString(in.ServiceAccount), "service account %q: use NAME@PROJECT.iam.gserviceaccount.com",
		in.ServiceAccount)
	want(in.Partitions >= 1 && in.Partitions <= partition.Slots, "%d partitions: use 1 to %d", in.Partitions,
		partition.Slots)
	want(in.Strategy == "modulo" || in.Strategy == "consistent", "strategy %q: use modulo or consistent", in.Strategy)
	want(in.ChainID >= 1, "chain id %d: use the number of eth_chainId", in.ChainID)
	want(factories.MatchString(in.Factory),
		"factory %q: use 0x and 40 hexadecimal digits, several as ADDRESS@START_BLOCK with commas between them", in.Factory)
	want(in.StartBlock >= 0, "start block %d: use 0 or more", in.StartBlock)
	want(in.Topic != "", "topic: name the topic of the events")
	want(in.CloudSQLInstance == "" || connection.MatchString(in.CloudSQLInstance),
		"Cloud SQL instance %q: use PROJECT:REGION:INSTANCE", in.CloudSQLInstance)
	for _, k := range slices.Sorted(maps.Keys(in.Env)) {
		want(environment.MatchString(k), "variable %q: use upper-case letters, digits and underscores", k)
		want(!slices.Contains(secretVariables, k),
			"variable %s: may carry a secret; put it into Secret Manager and name it in Secrets", k)
		want(!slices.Contains(ownVariables, k), "variable %s: is set by a field of its own, or by Cloud Run", k)
		want(!slices.Contains(keyVariables, k), "variable %s: every service would have it; it is set for those with keys", k)
	}

	for _, k := range slices.Sorted(maps.Keys(in.Secrets)) {
		want(environment.MatchString(k), "variable %q: use upper-case letters, digits and underscores", k)
		want(secretRef.MatchString(in.Secrets[k]),
			"secret %q of %s: use NAME or NAME:VERSION, a number: latest does not skip a disabled version", in.Secrets[k], k)
		_, twice := in.Env[k]
		want(!twice, "variable %s: is in Env and in Secrets", k)
	}

	_, database := in.Secrets["DATABASE_URL"]
	want(database, "secrets: DATABASE_URL is missing")
	_, one := in.Secrets["RPC_URL"]
	_, several := in.Secrets["RPC_URLS"]
	want(one || several, "secrets: RPC_URLS is missing")
	if c := in.Commands; c != nil {
		c.check(in, want)
	}

	return errors.Join(problems...)
}

func (c *CommandsInput) check(in ManifestInput, want func(ok bool, format string, args ...any)) {
	want(c.Services >= 1 && c.Services <= in.Partitions, "%d services with keys: use 1 to %d, the number of partitions",
		c.Services, in.Partitions)
	want(accountEmail.MatchString(c.ServiceAccount),
		"service account of the services with keys %q: use NAME@PROJECT.iam.gserviceaccount.com", c.ServiceAccount)
	want(c.ServiceAccount != in.ServiceAccount,
		"service account of the services with keys: it must be one of its own, or every service may sign")
	want(c.Subscription != "", "commands subscription: name the subscription that commands are taken from")
	want(c.RepliesTopic != "", "replies topic: name the topic of the answers")
	want(c.KeeperSender == "" || address.MatchString(c.KeeperSender), "keeper sender %q: use 0x and 40 hexadecimal digits",
		c.KeeperSender)
	for _, ref := range []string{c.SendersSecret, c.PolicySecret} {
		want(secretRef.MatchString(ref), "secret %q of the services with keys: use NAME or NAME:VERSION", ref)
	}
}

// quote writes a string as JSON, which is also a YAML double-quoted scalar.
func quote(s string) (string, error) {
	b, err := json.Marshal(s)
	return string(b), err
}
