package deploy

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// person is who follows the pages: an owner of the project, and the operator of terraform.tfvars.example.
const person = "user:you@example.com"

// credentials are application default credentials, where gcloud leaves them.
type credentials struct{ Account string }

// login is `gcloud auth application-default login`: what it writes is for every other program, Terraform too.
func (c *cloud) login(args []string) error {
	f, rest, err := parsed(args, "impersonate-service-account=")
	if err != nil || len(rest) > 0 {
		return refuse("auth application-default login %q: %v", args, err)
	}

	account := person
	if as := f["impersonate-service-account"]; as != "" {
		if !c.mayActAs(person, as) {
			return refuse("permission denied to act as %q", as)
		}

		account = as
	}

	folder := os.Getenv("CLOUDSDK_CONFIG")
	if folder == "" {
		folder = filepath.Join(os.Getenv("HOME"), ".config", "gcloud")
	}

	text, err := json.Marshal(credentials{account})
	if err != nil {
		return err
	}

	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}

	return os.WriteFile(filepath.Join(folder, "application_default_credentials.json"), text, 0o600)
}

// whoami is whose credentials a program finds that asks for the default ones.
func whoami() (string, error) {
	file := os.Getenv("GOOGLE_APPLICATION_CREDENTIALS")
	if file == "" {
		file = filepath.Join(os.Getenv("HOME"), ".config", "gcloud", "application_default_credentials.json")
	}

	text, err := os.ReadFile(file)
	if err != nil {
		return "", refuse("could not find default credentials: %v", err)
	}

	var found credentials

	return found.Account, json.Unmarshal(text, &found)
}

func (c *cloud) setPassword(args []string) error {
	f, rest, err := parsed(args, "instance=", "prompt-for-password", "project=")
	if err != nil {
		return err
	}

	if err := c.here(f); err != nil {
		return err
	}

	i := c.Databases[f["instance"]]
	if i == nil || len(rest) != 1 || rest[0] != "postgres" || f["prompt-for-password"] == "" {
		return refuse("set-password %q", args)
	}

	i.Password = true

	return nil
}

func (c *cloud) backUp(args []string) error {
	f, rest, err := parsed(args, "instance=", "project=")
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

// sqlProxy connects as the account of the default credentials, or as one that this account may act as;
// with --auto-iam-authn it logs in as it, too. The account needs the roles on that instance. It listens
// a moment after it was started: who does not wait is refused.
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

	if len(rest) != 1 || f["port"] == "" {
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

	account, err := whoami()
	if err != nil {
		return err
	}

	if as := f["impersonate-service-account"]; as != "" {
		if !c.mayActAs(account, as) {
			return refuse("%s: permission iam.serviceAccounts.getAccessToken denied on %q", account, as)
		}

		account = as
	}

	if err := c.mayConnect(account, parts[2]); err != nil {
		return err
	}

	proxy := sqlProxy{Instance: parts[2]}
	if f["auto-iam-authn"] != "" {
		proxy.Account = account
	}

	if f["health-check"] != "" {
		proxy.HealthPort = f["http-port"]
	}

	c.Proxies[f["port"]] = proxy

	return nil
}

// mayActAs reports whether somebody may act as an account. An account may not act as itself.
func (c *cloud) mayActAs(who, account string) bool {
	if !strings.HasPrefix(who, "user:") {
		who = "serviceAccount:" + who
	}

	for address, has := range c.State {
		id, _ := has["service_account_id"].(string)
		if strings.HasPrefix(address, "google_service_account_iam_member.") && strings.HasSuffix(id, "/"+account) &&
			has["member"] == who && has["role"] == "roles/iam.serviceAccountTokenCreator" {
			return c.enabled("iamcredentials")
		}
	}

	return false
}

// mayConnect says why an account does not get through the connector; nil: it does. An owner of the project does.
func (c *cloud) mayConnect(account, on string) error {
	for _, role := range []string{"roles/cloudsql.client", "roles/cloudsql.instanceUser"} {
		if account != person && !c.granted(account, role, on) {
			return refuse("%s has no %s on instance %s", account, role, on)
		}
	}

	return nil
}

// granted reports whether an account has a role on a database instance.
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

// connected is the database instance behind a URL, for a login that has to be the account's: that of the
// proxy, or with CLOUDSQL_INSTANCE that of the default credentials.
func (c *cloud) connected(databaseURL string) (i *sqlInstance, on, login string, err error) {
	u, err := url.Parse(databaseURL)
	if err != nil {
		return nil, "", "", err
	}

	var account string
	if instance := os.Getenv("CLOUDSQL_INSTANCE"); instance != "" {
		if account, err = whoami(); err != nil {
			return nil, "", "", err
		}

		on = instance[strings.LastIndex(instance, ":")+1:]
		if c.Databases[on] == nil || os.Getenv("CLOUDSQL_IAM_AUTH") != "true" {
			return nil, "", "", refuse("no instance %q for logins by IAM", instance)
		}

		if err := c.mayConnect(account, on); err != nil {
			return nil, "", "", err
		}
	} else {
		p, ok := c.Proxies[u.Port()]
		if !ok || !p.Ready {
			return nil, "", "", refuse("connect to %s: connection refused", u.Host)
		}

		on, account = p.Instance, p.Account
	}

	i, login = c.Databases[on], u.User.Username()
	byPassword := account == "" && login == "postgres" && i.Password
	byIAM := login == strings.TrimSuffix(account, ".gserviceaccount.com") && slices.Contains(i.Users, login)
	if !byPassword && !byIAM {
		return nil, "", "", refuse("authentication failed for user %q", login)
	}

	if database := strings.TrimPrefix(u.Path, "/"); !slices.Contains(i.Databases, database) {
		return nil, "", "", refuse("database %q does not exist", database)
	}

	return i, on, login, nil
}

// mayUseTables says why a login cannot serve, or look at what others serve; nil: it can.
func (c *cloud) mayUseTables(i *sqlInstance, on, login string) error {
	switch {
	case c.Schema[on] == 0:
		return refuse("the database has no schema: run `escrow-relayer migrate`")
	case !slices.Contains(i.Usage, login):
		return refuse("permission denied for schema public: %s", login)
	case !slices.Contains(i.Tables, login):
		return refuse("permission denied for table leadership: %s", login)
	}

	return nil
}

// relayer is the operator's binary. What it says of the fleet is what the services' sessions say, in
// the database that they use: one that it is not connected to does not know them.
func (c *cloud) relayer(args []string) error {
	if words := strings.Join(args[:min(2, len(args))], " "); words == "sender address" || words == "command sign" {
		text, err := io.ReadAll(os.Stdin)
		if err != nil || len(text) == 0 {
			return refuse("nothing to read: %v", err)
		}

		fmt.Print(string(text))

		return nil
	}

	i, on, login, err := c.connected(os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}

	if args[0] != "migrate" {
		if err := c.mayUseTables(i, on, login); err != nil {
			return err
		}
	}

	// A service whose login cannot use the tables waits, and says so; it does not serve.
	lives := func(name string) bool {
		s := c.Services[name]
		return s != nil && s.Down == "" && s.Scaling != "0" && strings.HasSuffix(s.Env["CLOUDSQL_INSTANCE"], ":"+on) &&
			c.mayUseTables(i, on, strings.TrimSuffix(s.Account, ".gserviceaccount.com")) == nil
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
			fmt.Printf("  { \"alive\": %t },\n", lives(name)) // as scale.sh reads it
		}

		fmt.Println(`] }`)

		return nil
	case args[0] == "migrate":
		if !slices.Contains(i.Create, login) {
			return refuse("permission denied for schema public: %s may not change tables", login)
		}

		c.Schema[on]++
		i.Tables = append([]string{login}, i.Later[login]...)

		return nil
	case words == "sender status", words == "command list":
		for name, s := range c.Services {
			if lives(name) && s.Env["SENDERS_FILE"] != "" {
				return nil
			}
		}

		return refuse("no instance that lives has a sender's key")
	case args[0] == "doctor":
		return c.doctor()
	case args[0] == "audit":
		if len(c.Services) == 0 {
			return refuse("nothing was read yet")
		}

		return nil
	}

	return refuse("unknown command %q", args)
}

// doctor looks at topics and endpoints too, where the environment has the configuration of a service.
func (c *cloud) doctor() error {
	if os.Getenv("PUBSUB_TOPIC_ID") == "" {
		return nil // of the database alone, as the restore runbook does
	}

	account, err := whoami()
	if err != nil {
		return err
	}

	for _, variable := range []string{"PUBSUB_TOPIC_ID", "RETRACTIONS_TOPIC_ID"} {
		publishes := false
		for address, has := range c.State {
			publishes = publishes || strings.HasPrefix(address, "google_pubsub_topic_iam_member.") &&
				has["topic"] == os.Getenv(variable) && has["role"] == "roles/pubsub.publisher" &&
				has["member"] == "serviceAccount:"+account
		}

		if !publishes {
			return refuse("%s: %s may not publish to %q", variable, account, os.Getenv(variable))
		}
	}

	for _, variable := range []string{"CHAIN_ID", "FACTORY_ADDRESS", "START_BLOCK", "RPC_URLS"} {
		if os.Getenv(variable) == "" {
			return refuse("%s is not set", variable)
		}
	}

	return nil
}

// What the pages have postgres and the migration account say.
var (
	sqlComment  = regexp.MustCompile(`--[^\n]*`)
	sqlGrant    = regexp.MustCompile(`^grant (usage(?:, create)?) on schema public to "([^"]+)"$`)
	sqlDefaults = regexp.MustCompile(`^alter default privileges in schema public ` +
		`grant (.+) on (tables|sequences) to "([^"]+)"$`)
	sqlPresent  = regexp.MustCompile(`^grant (.+) on all (tables|sequences) in schema public to "([^"]+)"$`)
	sqlRevoke   = regexp.MustCompile(`^revoke (?:connect, temporary on database relayer|create on schema public) from public$`)
	sqlVersions = regexp.MustCompile(`^revoke insert, update, delete on (escrow_relayer_versions) from "([^"]+)"$`)
	sqlConnect  = regexp.MustCompile(`^grant connect on database relayer to "([^"]+)"$`)
	conninfo    = regexp.MustCompile(`^host=(\S+) port=(\S+) user=(\S+) dbname=(\S+)$`)
)

// psql connects, and carries out what comes by standard input.
func (c *cloud) psql(args []string) error {
	databaseURL := args[0]
	if m := conninfo.FindStringSubmatch(databaseURL); m != nil {
		databaseURL = fmt.Sprintf("postgresql://%s@%s:%s/%s", url.PathEscape(m[3]), m[1], m[2], m[4])
	}

	i, _, login, err := c.connected(databaseURL)
	if err != nil {
		return err
	}

	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}

	for statement := range strings.SplitSeq(sqlComment.ReplaceAllString(string(text), ""), ";") {
		if statement = strings.TrimSpace(statement); statement == "" {
			continue
		}

		if err := i.grant(statement, login); err != nil {
			return err
		}
	}

	return nil
}

// rowRights are those on a table that a service needs.
const rowRights = "select, insert, update, delete"

// grant carries out one statement of a login.
func (i *sqlInstance) grant(statement, login string) error {
	of := sqlGrant.FindStringSubmatch(statement)
	defaults, present := sqlDefaults.FindStringSubmatch(statement), sqlPresent.FindStringSubmatch(statement)
	connect, versions := sqlConnect.FindStringSubmatch(statement), sqlVersions.FindStringSubmatch(statement)
	known := slices.Concat(of, defaults, present, connect, versions, sqlRevoke.FindStringSubmatch(statement))
	switch {
	case sqlRevoke.MatchString(statement) && login == "postgres":
		return nil
	case known == nil:
		return refuse("syntax error at or near %q", statement)
	case !slices.Contains(i.Users, known[len(known)-1]):
		return refuse("role %q does not exist", known[len(known)-1])
	case connect != nil && login == "postgres": // a login that may use the schema is taken to be one
	case (of != nil || connect != nil || sqlRevoke.MatchString(statement)) && login != "postgres":
		return refuse("permission denied for schema public: %s does not own it", login)
	case of != nil:
		i.Usage = append(i.Usage, of[2])
		if strings.Contains(of[1], "create") {
			i.Create = append(i.Create, of[2])
		}
	case (present != nil || versions != nil) && !slices.Contains(i.Create, login):
		return refuse("permission denied for table: %s does not own it", login)
	case present != nil && present[1] == rowRights:
		i.Tables = append(i.Tables, present[3])
	case defaults != nil && defaults[1] == rowRights:
		if i.Later == nil {
			i.Later = map[string][]string{}
		}

		i.Later[login] = append(i.Later[login], defaults[3])
	}

	return nil
}
