package deploy

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/zclconf/go-cty/cty"
)

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

	if args[0] == "init" {
		c.Initialised = true
		return nil
	}

	if !c.Initialised {
		return refuse("Error: Module not installed, or provider not available: run terraform init")
	}

	e, err := evaluate(dir)
	if err != nil {
		return err
	}

	if len(args) == 3 && args[1] == "-var" {
		name, value, _ := strings.Cut(args[2], "=")
		e.vars[name] = cty.StringVal(value)
		if value == "true" || value == "false" {
			e.vars[name] = cty.BoolVal(value == "true")
		}

		args = args[:1]
	}

	switch {
	case args[0] == "output" && len(args) == 3 && args[1] == "-raw":
		return c.output(e, args[2])
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

// output prints a value of outputs.tf, once there is something in the state.
func (c *cloud) output(e *evaluation, name string) error {
	b := e.blocks["output."+name]
	if b == nil || len(c.State) == 0 {
		return refuse("Output %q not found", name)
	}

	v, err := e.value(b.Body.Attributes["value"].Expr, nil)
	if err != nil {
		return err
	}

	fmt.Print(v.AsString())

	return nil
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

// plan reads what there is, as the account of the default credentials: like the provider it knows
// nothing of gcloud's own login.
func (c *cloud) plan(e *evaluation) (plan []action, err error) {
	account, err := whoami()
	if err != nil {
		return nil, err
	}

	if account != person {
		return nil, refuse("Error 403: %s may not read or change the project's resources", account)
	}

	if !c.enabled("cloudresourcemanager") || !c.enabled("serviceusage") {
		return nil, refuse("Error 403: Cloud Resource Manager API and Service Usage API have to be enabled")
	}

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

	order, err := e.order()
	if err != nil {
		return err
	}

	position := func(a action) int {
		block, _, _ := strings.Cut(a.Address, "[")
		return slices.Index(order, block)
	}
	slices.SortStableFunc(plan, func(a, b action) int { return position(a) - position(b) })
	for _, a := range plan {
		w := wanted[a.Address]
		kind, _, _ := strings.Cut(a.Address, ".")
		if (a.Verb == "destroy" || a.Verb == "replace") &&
			(kind == "google_sql_database_instance" || kind == "google_cloud_run_v2_service") {
			return refuse("%s: deletion protection: cannot destroy", a.Address)
		}

		if api := apiOf(kind); a.Verb != "destroy" && !c.enabled(api) {
			return refuse("%s: Error 403: %s.googleapis.com has not been used in project %s before or it is disabled",
				a.Address, api, c.Project)
		}

		if a.Verb == "create" || a.Verb == "replace" {
			name, _ := w.has["name"].(string)
			on, _ := w.has["instance"].(string)
			i := c.Databases[on]
			if i == nil && (kind == "google_sql_database" || kind == "google_sql_user") {
				return refuse("%s: Error 404: The Cloud SQL instance %q does not exist", a.Address, on)
			}

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
			case "google_project_service":
				c.APIs = append(c.APIs, w.has["service"].(string))
			case "google_secret_manager_secret":
				if id := w.has["secret_id"].(string); c.Secrets[id] == nil {
					c.Secrets[id] = []string{}
				}
			case "google_secret_manager_secret_version":
				if err := c.addVersion(w.has["secret"].(string)); err != nil {
					return err
				}
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

// addVersion adds a version to a secret that Terraform made, as its state names it.
func (c *cloud) addVersion(address string) error {
	id, _ := c.State[address]["secret_id"].(string)
	if c.Secrets[id] == nil {
		return refuse("Error 404: Secret [%s] not found", address)
	}

	c.Secrets[id] = append(c.Secrets[id], "ENABLED")

	return nil
}

// apiOf is the API that makes a kind of resource.
func apiOf(kind string) string {
	for prefix, api := range map[string]string{
		"google_sql_": "sqladmin", "google_secret_manager_": "secretmanager", "google_pubsub_": "pubsub",
		"google_cloud_run_": "run", "google_service_account": "iam",
		"google_kms_": "cloudkms", "google_bigquery_": "bigquery",
		"google_project_iam_": "cloudresourcemanager", "google_project_service": "serviceusage",
	} {
		if strings.HasPrefix(kind, prefix) {
			return api
		}
	}

	return "of " + kind + ", which the fake does not know,"
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
	s.Account, _ = want["template"].([]any)[0].(attributes)["service_account"].(string)
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
