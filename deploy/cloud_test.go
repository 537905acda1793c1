package deploy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
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
	Secrets         map[string][]string // by name: states of the versions 1, 2, …
	Images          []string
	Services        map[string]*runService
	Databases       map[string]*sqlInstance
	Schema          map[string]int        // by database instance: version of the last migration
	State           map[string]attributes // Terraform's, by address
	Proxies         map[string]sqlProxy   // by port
	Log             []string              // the commands, as they came
}

type runService struct {
	Image, Ingress string
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
			"set-tfvars": setTfvars, "psql": c.psql,
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

func (c *cloud) gcloud(args []string) error {
	words := slices.DeleteFunc(slices.Clone(args), func(a string) bool { return strings.HasPrefix(a, "-") })
	switch line := strings.Join(words, " ") + " "; {
	case strings.HasPrefix(line, "run services update "):
		return c.updateService(args[3:])
	case strings.HasPrefix(line, "run services proxy "):
		return refuse("the service has ingress internal: it is not reached from here")
	case line == "auth application-default login ":
		f, _, err := parsed(args[3:], "impersonate-service-account=")
		if err == nil && !c.mayActAs(f["impersonate-service-account"]) {
			err = refuse("permission denied to act as %q", f["impersonate-service-account"])
		}

		return err
	case strings.HasPrefix(line, "secrets versions "):
		return c.secrets(args[2], args[3:])
	case strings.HasPrefix(line, "sql instances clone "):
		return c.cloneDatabase(args[3:])
	case strings.HasPrefix(line, "sql instances patch "):
		return c.patchDatabase(args[3:])
	case strings.HasPrefix(line, "sql backups create "):
		f, rest, err := parsed(args[3:], "instance=", "project=")
		if err != nil {
			return err
		}

		i := c.Databases[f["instance"]]
		if len(rest) > 0 || i == nil || f["project"] != c.Project {
			return refuse("no instance %q in project %q", f["instance"], f["project"])
		}

		i.Backups++

		return nil
	}

	return refuse("Invalid choice: %q", strings.Join(words, " "))
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
		if err := c.readable(reference); err != nil {
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

func (c *cloud) updateService(args []string) error {
	f, rest, err := parsed(args, "region=", "project=", "container=", "image=", "update-secrets=", "update-env-vars=",
		"update-labels=", "scaling=", "quiet")
	if err != nil {
		return err
	}

	if f["region"] != c.Region || f["project"] != "" && f["project"] != c.Project {
		return refuse("Cannot find service in region %q of project %q", f["region"], f["project"])
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

func (c *cloud) secrets(verb string, args []string) error {
	f, rest, err := parsed(args, "secret=", "project=", "data-file=", "format=")
	if err != nil {
		return err
	}

	if f["project"] != "" && f["project"] != c.Project || len(rest) != 1 {
		return refuse("project %q, %q", f["project"], rest)
	}

	switch verb {
	case "add":
		value, err := io.ReadAll(os.Stdin)
		if err != nil || len(value) == 0 || f["data-file"] != "-" {
			return refuse("--data-file=%s: %d bytes, %v", f["data-file"], len(value), err)
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
	}

	return refuse("Invalid choice: %q", verb)
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
	c.Databases[rest[1]] = &sqlInstance{Databases: slices.Clone(c.Databases[rest[0]].Databases),
		Users: slices.Clone(c.Databases[rest[0]].Users)}
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

// awaitProxy waits for a proxy that was started just before: another process, which shows itself in
// the file that both have.
func (c *cloud) awaitProxy(healthPort string) error {
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	end := time.After(time.Minute)
	for {
		now, err := loadCloud(os.Getenv("FAKE_CLOUD"))
		if err == nil { // else it is being written
			for port, p := range now.Proxies {
				if p.HealthPort != "" && p.HealthPort == healthPort {
					p.Ready = true
					*c = *now
					c.Proxies[port] = p

					return nil
				}
			}
		}

		select {
		case <-look.C:
		case <-end:
			return refuse("no proxy answers at port %q", healthPort)
		}
	}
}

// sqlProxy connects as an account, which needs both roles on that instance, and which the person has
// to be allowed to act as. It listens a moment after it was started: who does not wait is refused.
func (c *cloud) sqlProxy(args []string) error {
	if len(args) > 0 && args[0] == "wait" {
		f, _, err := parsed(args[1:], "http-port=", "max=")
		if err != nil {
			return err
		}

		return c.awaitProxy(f["http-port"])
	}

	f, rest, err := parsed(args, "port=", "auto-iam-authn", "impersonate-service-account=", "health-check", "http-port=")
	if err != nil {
		return err
	}

	if len(rest) != 1 || f["port"] == "" || f["auto-iam-authn"] == "" {
		return refuse("%q", args)
	}

	parts := strings.Split(rest[0], ":")
	if len(parts) != 3 || parts[0] != c.Project || parts[1] != c.Region || c.Databases[parts[2]] == nil {
		return refuse("instance %q does not exist", rest[0])
	}

	for _, p := range c.Proxies {
		if f["health-check"] != "" && p.HealthPort == f["http-port"] {
			return refuse("listen: port %s of the health check is in use", f["http-port"])
		}
	}

	if c.Proxies[f["port"]].Instance != "" {
		return refuse("listen: port %s is in use", f["port"])
	}

	account := f["impersonate-service-account"]
	if !c.mayActAs(account) {
		return refuse("permission denied to act as %q", account)
	}

	for _, role := range []string{"roles/cloudsql.client", "roles/cloudsql.instanceUser"} {
		if !c.granted(account, role, parts[2]) {
			return refuse("%s has no %s on instance %s", account, role, parts[2])
		}
	}

	proxy := sqlProxy{Instance: parts[2], Account: account}
	if f["health-check"] != "" {
		proxy.HealthPort = f["http-port"]
	}

	c.Proxies[f["port"]] = proxy

	return nil
}

// mayActAs says whether the operator may act as an account.
func (c *cloud) mayActAs(account string) bool {
	for address, has := range c.State {
		id, _ := has["service_account_id"].(string)
		if strings.HasPrefix(address, "google_service_account_iam_member.operators[") && strings.HasSuffix(id, "/"+account) {
			return true
		}
	}

	return false
}

// granted says whether an account has a role on a database instance.
func (c *cloud) granted(account, role, on string) bool {
	for address, has := range c.State {
		if !strings.HasPrefix(address, "google_project_iam_member.") || has["role"] != role ||
			has["member"] != "serviceAccount:"+account {
			continue
		}

		conditions, _ := has["condition"].([]any)
		if len(conditions) == 0 {
			return true
		}

		expression, _ := conditions[0].(attributes)["expression"].(string)
		if strings.Contains(expression, fmt.Sprintf("projects/%s/instances/%s\"", c.Project, on)) {
			return true
		}
	}

	return false
}

// connected is the database instance behind DATABASE_URL, for a login that has to be the proxy's account.
func (c *cloud) connected() (on, account string, err error) {
	u, err := url.Parse(os.Getenv("DATABASE_URL"))
	if err != nil {
		return "", "", err
	}

	p, ok := c.Proxies[u.Port()]
	if !ok || !p.Ready {
		return "", "", refuse("connect to %s: connection refused", u.Host)
	}

	if login := strings.TrimSuffix(p.Account, ".gserviceaccount.com"); u.User.Username() != login ||
		!slices.Contains(c.Databases[p.Instance].Users, login) {
		return "", "", refuse("Cloud SQL IAM service account authentication failed for user %q", u.User.Username())
	}

	return p.Instance, p.Account, nil
}

// relayer is the operator's binary. What it says of the fleet is what the services' sessions say, in
// the database that they use: one that it is not connected to does not know them.
func (c *cloud) relayer(args []string) error {
	on, account, err := c.connected()
	if err != nil {
		return err
	}

	lives := func(name string) bool {
		s := c.Services[name]
		return s != nil && s.Down == "" && s.Scaling != "0" && strings.HasSuffix(s.Env["CLOUDSQL_INSTANCE"], ":"+on)
	}
	switch words := strings.Join(args[:min(2, len(args))], " "); {
	case words == "plan wait":
		f, _, err := parsed(args[2:], "instance=", "since=", "timeout=")
		if err != nil {
			return err
		}

		names := slices.Sorted(maps.Keys(c.Services))
		if f["instance"] != "" {
			names = []string{f["instance"]}
		}

		since, err := time.Parse(time.RFC3339, f["since"])
		if err != nil && f["since"] != "" {
			return err
		}

		for _, name := range names {
			if !lives(name) || c.Services[name].Started.Before(since) {
				return refuse("%s has not come up in the database %s", name, on)
			}
		}

		return nil
	case args[0] == "status":
		fmt.Println(`{ "instances": [`)
		for _, name := range slices.Sorted(maps.Keys(c.Services)) {
			fmt.Printf("  { \"alive\": %t },\n", lives(name))
		}

		fmt.Println(`] }`)

		return nil
	case args[0] == "migrate":
		if !strings.Contains(account, "-ddl@") {
			return refuse("permission denied for schema public: %s may not change tables", account)
		}

		c.Schema[on]++

		return nil
	case args[0] == "doctor", args[0] == "audit":
		return nil
	}

	return refuse("unknown command %q", args)
}

func (c *cloud) psql([]string) error {
	_, _, err := c.connected()
	return err
}

// setTfvars edits terraform.tfvars, as a person does whom a page tells to: NAME = VALUE.
func setTfvars(args []string) error {
	name, value, ok := strings.Cut(args[0], " = ")
	if !ok {
		return errors.New("NAME = VALUE")
	}

	file := filepath.Join(os.Getenv("FAKE_TERRAFORM"), "terraform.tfvars")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}

	line := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(strings.TrimSpace(name)) + ` *=.*\n`)

	return os.WriteFile(file, append(line.ReplaceAll(text, nil), strings.TrimSpace(name)+" = "+value+"\n"...), 0o600)
}

// terraform has a state, and plans by evaluating the module.
func (c *cloud) terraform(args []string) error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}

	e, err := evaluate(dir)
	if err != nil {
		return err
	}

	switch {
	case args[0] == "state" && args[1] == "rm":
		for _, address := range args[2:] {
			if c.State[address] == nil {
				return refuse("Invalid target address: no matching objects found for %q", address)
			}

			delete(c.State, address)
		}

		return nil
	case args[0] == "import" && len(args) == 3:
		return c.importResource(e, args[1], args[2])
	case args[0] == "plan" && len(args) == 1:
		plan, err := c.plan(e)
		for _, a := range plan {
			fmt.Printf("%s %s %s\n", a.Verb, a.Address, strings.Join(a.Fields, ","))
		}

		if len(plan) == 0 {
			fmt.Println("No changes. Your infrastructure matches the configuration.")
		}

		return err
	case args[0] == "apply" && len(args) == 1:
		return c.apply(e)
	}

	return refuse("%q", args)
}

var importIDs = map[string]*regexp.Regexp{
	"google_sql_database": regexp.MustCompile(`^projects/([^/]+)/instances/([^/]+)/databases/([^/]+)$`),
	"google_sql_user":     regexp.MustCompile(`^([^/]+)/([^/]+)/([^/]+)$`),
}

func (c *cloud) importResource(e *evaluation, address, id string) error {
	wanted, err := e.wanted()
	if err != nil {
		return err
	}

	w, ok := wanted[address]
	if !ok {
		return refuse("resource address %q does not exist in the configuration", address)
	}

	if c.State[address] != nil {
		return refuse("Resource already managed by Terraform: %s", address)
	}

	m := importIDs[w.kind].FindStringSubmatch(id)
	if m == nil || m[1] != c.Project || c.Databases[m[2]] == nil {
		return refuse("import id %q of %s doesn't match an existing object", id, address)
	}

	has := attributes{"name": m[3], "instance": m[2]}
	there := c.Databases[m[2]].Databases
	if w.kind == "google_sql_user" {
		there, has["type"] = c.Databases[m[2]].Users, "CLOUD_IAM_SERVICE_ACCOUNT"
	}

	if !slices.Contains(there, m[3]) {
		return refuse("Cannot import non-existent remote object %q", id)
	}

	c.State[address] = has

	return nil
}

// refresh brings into the state what others have changed in the cloud.
func (c *cloud) refresh() {
	for address, has := range c.State {
		name, _ := has["name"].(string)
		s := c.Services[name]
		if !strings.HasPrefix(address, "google_cloud_run_v2_service.") || s == nil {
			continue
		}

		has["client"], has["client_version"] = "gcloud", "500.0.0"
		has["scaling"] = []any{attributes{"scaling_mode": s.Scaling}}
		first := relayerContainer(has)
		first["image"] = s.Image
		for _, v := range first["env"].([]any) {
			one := v.(attributes)
			variable := one["name"].(string)
			if reference, ok := s.Secrets[variable]; ok {
				secret, version, _ := strings.Cut(reference, ":")
				one["value_source"] = []any{attributes{"secret_key_ref": []any{attributes{"secret": secret, "version": version}}}}
			} else {
				one["value"] = s.Env[variable]
			}
		}
	}
}

func relayerContainer(service attributes) attributes {
	template := service["template"].([]any)[0].(attributes)
	return template["containers"].([]any)[0].(attributes)
}

func (c *cloud) plan(e *evaluation) (plan []action, err error) {
	wanted, err := e.wanted()
	if err != nil {
		return nil, err
	}

	c.refresh()
	for _, address := range slices.Sorted(maps.Keys(wanted)) {
		w := wanted[address]
		if is, ok := c.State[address]; !ok {
			plan = append(plan, action{Address: address, Verb: "create"})
		} else if a := e.difference(address, w.kind, is, w.has); a != nil {
			plan = append(plan, *a)
		}
	}

	for _, address := range slices.Sorted(maps.Keys(c.State)) {
		if _, ok := wanted[address]; !ok {
			plan = append(plan, action{Address: address, Verb: "destroy"})
		}
	}

	return plan, nil
}

// apply does what the plan says, as far as Google lets it.
func (c *cloud) apply(e *evaluation) error {
	plan, err := c.plan(e)
	if err != nil {
		return err
	}

	wanted, err := e.wanted()
	if err != nil {
		return err
	}

	first := func(a action) int {
		if strings.HasPrefix(a.Address, "google_sql_database_instance.") {
			return 0
		}

		return 1
	}
	slices.SortStableFunc(plan, func(a, b action) int { return first(a) - first(b) })
	for _, a := range plan {
		w := wanted[a.Address]
		kind, _, _ := strings.Cut(a.Address, ".")
		if (a.Verb == "destroy" || a.Verb == "replace") &&
			(kind == "google_sql_database_instance" || kind == "google_cloud_run_v2_service") {
			return refuse("%s: deletion protection: cannot destroy", a.Address)
		}

		if a.Verb == "create" || a.Verb == "replace" {
			name, _ := w.has["name"].(string)
			on, _ := w.has["instance"].(string)
			i := c.Databases[on]
			if kind == "google_sql_database_instance" && c.Databases[name] != nil ||
				kind == "google_sql_database" && i != nil && slices.Contains(i.Databases, name) ||
				kind == "google_sql_user" && i != nil && slices.Contains(i.Users, name) {
				return refuse("%s: Error 409: it already exists", a.Address)
			}

			switch kind {
			case "google_sql_database_instance":
				c.Databases[name] = &sqlInstance{DeletionProtection: true, RetainBackups: true, BackupLocation: "us"}
			case "google_sql_database":
				i.Databases = append(i.Databases, name)
			case "google_sql_user":
				i.Users = append(i.Users, name)
			}
		}

		was := c.State[a.Address]
		if a.Verb == "destroy" {
			delete(c.State, a.Address)
			continue
		}

		c.State[a.Address] = w.has
		if kind == "google_cloud_run_v2_service" {
			if err := c.applyService(w.has, was); err != nil {
				return err
			}
		}
	}

	return nil
}

// applyService gives a service the arguments of the module; what the module ignores stays.
func (c *cloud) applyService(want, was attributes) error {
	name := want["name"].(string)
	s := c.Services[name]
	if s == nil {
		s = &runService{Image: relayerContainer(want)["image"].(string), Scaling: "auto"}
		c.Services[name] = s
	} else if was != nil {
		relayerContainer(want)["image"] = s.Image
	}

	s.Ingress = want["ingress"].(string)
	s.Env, s.Secrets = map[string]string{}, map[string]string{}
	for _, v := range relayerContainer(want)["env"].([]any) {
		one := v.(attributes)
		if source, ok := one["value_source"].([]any); ok {
			r := source[0].(attributes)["secret_key_ref"].([]any)[0].(attributes)
			s.Secrets[one["name"].(string)] = fmt.Sprintf("%v:%v", r["secret"], r["version"])
		} else {
			s.Env[one["name"].(string)] = one["value"].(string)
		}
	}

	return c.start(s)
}
