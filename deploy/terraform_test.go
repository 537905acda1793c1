package deploy

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/config"
)

// module is the Terraform module as far as it can be read without its provider.
type module struct {
	bodies  map[string]*hclsyntax.Body
	sources map[string][]byte
	blocks  map[string]*hclsyntax.Block // "resource.google_x.y", "variable.z", "data.google_x.y", "output.z"
	locals  map[string]hclsyntax.Expression
}

func readModule(t *testing.T) module {
	t.Helper()
	m := module{map[string]*hclsyntax.Body{}, map[string][]byte{}, map[string]*hclsyntax.Block{},
		map[string]hclsyntax.Expression{}}
	files, err := filepath.Glob("terraform/*.tf")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		f, diags := hclsyntax.ParseConfig(text, name, hcl.InitialPos)
		require.False(t, diags.HasErrors(), diags.Error())
		body := f.Body.(*hclsyntax.Body)
		m.bodies[name], m.sources[name] = body, text
		require.Empty(t, body.Attributes, "%s: attributes belong into blocks", name)
		for _, b := range body.Blocks {
			switch b.Type {
			case "locals":
				for k, a := range b.Body.Attributes {
					require.NotContains(t, m.locals, k, "local.%s is there twice", k)
					m.locals[k] = a.Expr
				}
			case "resource", "data", "variable", "output":
				key := strings.Join(append([]string{b.Type}, b.Labels...), ".")
				require.NotContains(t, m.blocks, key)
				m.blocks[key] = b
			default:
				require.Equal(t, "terraform", b.Type, "%s: with a provider block for_each over chains is impossible", name)
			}
		}
	}

	return m
}

func (m module) resource(t *testing.T, name string) *hclsyntax.Body {
	t.Helper()
	b := m.blocks["resource."+name]
	require.NotNil(t, b, name)

	return b.Body
}

// only is the one nested block of that type.
func only(t *testing.T, body *hclsyntax.Body, kinds ...string) *hclsyntax.Body {
	t.Helper()
	for _, kind := range kinds {
		i := slices.IndexFunc(body.Blocks, func(b *hclsyntax.Block) bool { return b.Type == kind })
		require.GreaterOrEqual(t, i, 0, kind)
		body = body.Blocks[i].Body
	}

	return body
}

// Every reference leads to something, and every variable is used.
func TestTerraformReferences(t *testing.T) {
	t.Parallel()
	m := readModule(t)
	used := map[string]bool{}
	for name, body := range m.bodies {
		diags := hclsyntax.VisitAll(body, func(n hclsyntax.Node) hcl.Diagnostics {
			e, ok := n.(*hclsyntax.ScopeTraversalExpr)
			if !ok {
				return nil
			}

			root, second := e.Traversal.RootName(), ""
			if len(e.Traversal) > 1 {
				if a, ok := e.Traversal[1].(hcl.TraverseAttr); ok {
					second = a.Name
				}
			}

			at := name + ": " + string(e.SrcRange.SliceBytes(m.sources[name]))
			switch {
			case root == "var":
				require.Contains(t, m.blocks, "variable."+second, at)
				used[second] = true
			case root == "local":
				require.Contains(t, m.locals, second, at)
			case root == "data":
				third := e.Traversal[2].(hcl.TraverseAttr).Name
				require.Contains(t, m.blocks, "data."+second+"."+third, at)
			case strings.HasPrefix(root, "google_"):
				require.Contains(t, m.blocks, "resource."+root+"."+second, at)
			}

			return nil
		})
		require.False(t, diags.HasErrors())
	}

	for name, b := range m.blocks {
		if v, ok := strings.CutPrefix(name, "variable."); ok {
			require.True(t, used[v], "variable %s is not used", v)
			require.Contains(t, b.Body.Attributes, "description", name)
			require.Contains(t, b.Body.Attributes, "type", name)
		}
	}
}

// The module that chains.tf.example repeats for each chain has every argument that the module asks for, and no other;
// what would be made twice differs.
func TestTerraformForEachChain(t *testing.T) {
	t.Parallel()
	const name = "terraform/chains.tf.example"
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	f, diags := hclsyntax.ParseConfig(text, name, hcl.InitialPos)
	require.False(t, diags.HasErrors(), diags.Error())
	used := f.Body.(*hclsyntax.Body).Blocks[1]
	require.Equal(t, "module", used.Type)
	given, m := used.Body.Attributes, readModule(t)
	for name := range given {
		if name != "source" && name != "for_each" {
			require.Contains(t, m.blocks, "variable."+name)
		}
	}

	for name, b := range m.blocks {
		if v, ok := strings.CutPrefix(name, "variable."); ok && b.Body.Attributes["default"] == nil {
			require.Contains(t, given, v)
		}
	}

	for _, differs := range []string{"name", "topic", "retractions_topic"} {
		require.NotEmpty(t, given[differs].Expr.Variables(), "%s names each.key", differs)
	}
}

// providerSchema names the arguments of the google provider (6.x) that the module may use, block by
// block, from its documentation. It stands in for `terraform validate`, which needs the provider
// itself.
func providerSchema(t *testing.T) map[string]any {
	t.Helper()
	var schema map[string]any
	strictYAML(t, "testdata/google-provider.yaml", &schema)

	return schema
}

var metaArguments = []string{"count", "for_each", "depends_on", "lifecycle", "provider"}

func TestTerraformArgumentsExist(t *testing.T) {
	t.Parallel()
	schema := providerSchema(t)
	m := readModule(t)
	var check func(where string, body *hclsyntax.Body, known map[string]any)
	check = func(where string, body *hclsyntax.Body, known map[string]any) {
		for name := range body.Attributes {
			v, ok := known[name]
			require.True(t, ok || slices.Contains(metaArguments, name), "%s has no argument %s", where, name)
			require.Nil(t, v, "%s.%s is a block", where, name)
		}

		for _, b := range body.Blocks {
			kind, inner := b.Type, b.Body
			if slices.Contains(metaArguments, kind) {
				continue
			}

			if kind == "dynamic" {
				kind, inner = b.Labels[0], only(t, b.Body, "content")
			}

			nested, ok := known[kind].(map[string]any)
			require.True(t, ok, "%s has no block %s", where, kind)
			check(where+"."+kind, inner, nested)
		}

		if required, ok := known["_required"].([]any); ok {
			for _, name := range required {
				_, attribute := body.Attributes[name.(string)]
				block := slices.ContainsFunc(body.Blocks, func(b *hclsyntax.Block) bool { return b.Type == name })
				require.True(t, attribute || block, "%s needs %s", where, name)
			}
		}
	}
	for name, b := range m.blocks {
		if b.Type == "resource" {
			known, ok := schema[b.Labels[0]].(map[string]any)
			require.True(t, ok, "testdata/google-provider.yaml does not know %s", b.Labels[0])
			check(name, b.Body, known)
		}
	}
}

// The policies take their expressions from alerts.yaml; nothing is written twice.
func TestTerraformAlertsComeFromTheRules(t *testing.T) {
	t.Parallel()
	m := readModule(t)
	condition := only(t, m.resource(t, "google_monitoring_alert_policy.relayer"), "conditions",
		"condition_prometheus_query_language")
	for argument, want := range map[string]string{"query": "each.value.query", "duration": "each.value.duration",
		"rule_group": "each.value.group"} {
		a := condition.Attributes[argument]
		require.Equal(t, want, string(a.Expr.Range().SliceBytes(m.sources[a.SrcRange.Filename])))
	}

	require.Contains(t, string(m.sources["terraform/alerts.tf"]), `file("${path.module}/../prometheus/alerts.yaml.tmpl")`)
	require.Contains(t, string(m.sources["terraform/dashboard.tf"]), `file("${path.module}/../grafana/dashboard.json")`)
	for name, text := range m.sources {
		require.NotRegexp(t, `relayer_[a-z_]+(_total|_seconds|_blocks)`, string(text),
			"%s: expressions belong into alerts.yaml.tmpl", name)
	}
}

// Secrets have no value in the module, so none is in its state; roles are the narrow ones.
func TestTerraformKeepsSecretsOutAndRolesNarrow(t *testing.T) {
	t.Parallel()
	m := readModule(t)
	for name := range m.blocks {
		require.NotContains(t, name, "google_project_iam_binding", "would take the role from everybody else")
	}

	for name, text := range m.sources {
		for _, broad := range []string{"roles/owner", "roles/editor", "roles/pubsub.admin", "roles/pubsub.editor",
			"roles/cloudsql.admin", "roles/secretmanager.admin"} {
			require.NotContains(t, string(text), broad, name)
		}

		require.NotRegexp(t, `(?i)password\s*=`, string(text), name)
	}

	versions := 0
	for name := range m.blocks {
		if strings.HasPrefix(name, "resource.google_secret_manager_secret_version.") {
			versions++
			require.NotContains(t, name, "rpc")
		}
	}

	require.Equal(t, 3, versions, "the two database URLs without a password, and the collector's configuration")
}

// expression is the text of an attribute.
func (m module) expression(t *testing.T, body *hclsyntax.Body, name string) string {
	t.Helper()
	a := body.Attributes[name]
	require.NotNil(t, a, name)

	return string(a.Expr.Range().SliceBytes(m.sources[a.SrcRange.Filename]))
}

// Only the account of the services with keys may sign, and that key by key; it can neither make nor
// destroy one. Nobody else acts as it, and the services without keys cannot read its secrets.
func TestTerraformKeysArePartedFromTheRest(t *testing.T) {
	t.Parallel()
	m := readModule(t)
	for name, b := range m.blocks {
		kind := b.Labels[0]
		if b.Type != "resource" || !strings.HasSuffix(kind, "_iam_member") {
			continue
		}

		role, member := m.expression(t, b.Body, "role"), m.expression(t, b.Body, "member")
		require.NotContains(t, role, "cloudkms.admin", name)
		if strings.HasPrefix(kind, "google_kms_") {
			require.Equal(t, "google_kms_crypto_key_iam_member", kind, "%s: a role on the key ring is one on every key", name)
			require.Equal(t, `"roles/cloudkms.signerVerifier"`, role)
			require.Equal(t, "local.key_member", member)
		}

		if kind == "google_service_account_iam_member" {
			require.NotContains(t, m.expression(t, b.Body, "service_account_id"), "keys", "%s: who acts as it can sign", name)
		}
	}

	require.Equal(t, "toset(local.secrets)",
		m.expression(t, m.resource(t, "google_secret_manager_secret_iam_member.relayer"), "for_each"))
	secrets := m.locals["secrets"]
	require.NotContains(t, string(secrets.Range().SliceBytes(m.sources[secrets.Range().Filename])), "senders")

	key := m.resource(t, "google_kms_crypto_key.sender")
	version := only(t, key, "version_template")
	require.Equal(t, `"EC_SIGN_SECP256K1_SHA256"`, m.expression(t, version, "algorithm"), "what relayer/command/sign asks for")
	require.Equal(t, `"HSM"`, m.expression(t, version, "protection_level"), "no other level has this curve")
	require.Equal(t, "true", m.expression(t, only(t, key, "lifecycle"), "prevent_destroy"))

	for _, name := range []string{"key_services", "senders"} {
		value := m.expression(t, m.blocks["variable."+name].Body, "default")
		require.Contains(t, []string{"0", "[]"}, value, "off by default")
	}
}

// No service follows a secret to its newest version: a version that is disabled as a way back would
// take down every instance that starts anew. And what a release or a restart did by gcloud, the
// next apply does not undo.
func TestTerraformPinsSecretsAndLeavesReleasesAlone(t *testing.T) {
	t.Parallel()
	m := readModule(t)
	for name, text := range m.sources {
		require.NotRegexp(t, `version\s*=\s*"latest"`, string(text), name)
	}

	service := m.resource(t, "google_cloud_run_v2_service.relayer")
	ignored := only(t, service, "lifecycle").Attributes["ignore_changes"]
	text := string(ignored.SrcRange.SliceBytes(m.sources[ignored.SrcRange.Filename]))
	for _, what := range []string{"template[0].containers[0].image", `template[0].labels["restarted"]`, "scaling"} {
		require.Contains(t, text, what)
	}

	relayer := service.Blocks[slices.IndexFunc(service.Blocks,
		func(b *hclsyntax.Block) bool { return b.Type == "template" })].Body
	first := relayer.Blocks[slices.IndexFunc(relayer.Blocks,
		func(b *hclsyntax.Block) bool { return b.Type == "containers" })].Body
	name := first.Attributes["name"]
	require.Equal(t, `"relayer"`, string(name.Expr.Range().SliceBytes(m.sources[name.SrcRange.Filename])),
		"containers[0] is the relayer")

	settings := only(t, m.resource(t, "google_sql_database_instance.this"), "settings")
	require.Contains(t, settings.Attributes, "deletion_protection_enabled")
	require.Contains(t, settings.Attributes, "retain_backups_on_delete")
	require.Contains(t, only(t, settings, "backup_configuration").Attributes, "location")
}

// configuration is every variable that the relayer reads, and whether it is a secret.
func configuration() map[string]bool {
	all := map[string]bool{}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[config.Config]()) {
		if name := f.Tag.Get("env"); name != "" && name != "-" {
			all[name] = f.Tag.Get("secret") == "yes"
		}
	}

	return all
}

// services are the Cloud Run services that Terraform makes of the example's values, by partition.
func services(t *testing.T, withCommands bool) (all []attributes, wanted map[string]instance) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS("terraform")))
	values, err := os.ReadFile("terraform/terraform.tfvars.example")
	require.NoError(t, err)
	if withCommands {
		lines := regexp.MustCompile(`(?m)^# ([a-z_]+ *= )`)
		require.Len(t, lines.FindAll(values, -1), 5)
		values = lines.ReplaceAll(values, []byte("$1"))
	}

	require.NoError(t, os.WriteFile(filepath.Join(dir, "terraform.tfvars"), values, 0o600))
	e, err := evaluate(dir)
	require.NoError(t, err)
	wanted, err = e.wanted()
	require.NoError(t, err)
	for i := range 3 {
		has := wanted[fmt.Sprintf(`google_cloud_run_v2_service.relayer["%d"]`, i)].has
		require.NotNil(t, has)
		all = append(all, has)
	}

	return all, wanted
}

// inner follows blocks, of which there is one, or the first of several.
func inner(has attributes, kinds ...string) attributes {
	for _, kind := range kinds {
		has = has[kind].([]any)[0].(attributes)
	}

	return has
}

// configured loads the relayer's configuration of a service's environment, and returns the secret of each variable.
func configured(t *testing.T, service attributes) (c *config.Config, secrets map[string]any, mounted []string) {
	t.Helper()
	template, env, known := inner(service, "template"), map[string]string{}, configuration()
	secrets = map[string]any{}
	for _, x := range inner(template, "containers")["env"].([]any) {
		v := x.(attributes)
		name := v["name"].(string)
		require.Contains(t, known, name, "the relayer does not read it")
		if value, ok := v["value"].(string); ok {
			env[name] = value
		} else {
			secrets[name] = inner(v, "value_source", "secret_key_ref")["secret"]
		}
	}

	require.ElementsMatch(t, []string{"DATABASE_URL", "RPC_URLS"}, slices.Collect(maps.Keys(secrets)))
	env["DATABASE_URL"] = "postgresql://escrow-relayer%40fusion-prime.iam@/relayer"
	env["RPC_URLS"] = "https://node.example/key"
	c, err := config.Load(env)
	require.NoError(t, err)
	mounts, _ := inner(template, "containers")["volume_mounts"].([]any)
	for _, m := range mounts {
		for _, v := range template["volumes"].([]any) {
			if m := m.(attributes); v.(attributes)["name"] == m["name"] {
				file := inner(v.(attributes), "secret", "items")["path"].(string)
				mounted = append(mounted, m["mount_path"].(string)+"/"+file)
			}
		}
	}

	return c, secrets, mounted
}

// One service per partition, each with an id of its own, in a configuration that the relayer accepts; and what Cloud
// Run does with it: one instance, CPU always, and probes that ask whether the process lives.
func TestTerraformMakesOneServicePerPartition(t *testing.T) {
	t.Parallel()
	all, wanted := services(t, false)
	for i, service := range all {
		c, secrets, mounted := configured(t, service)
		require.Equal(t, i, c.Partition.Number)
		require.Equal(t, 3, c.Partition.Total)
		require.Equal(t, fmt.Sprintf("escrow-relayer-%d", i), c.InstanceID)
		require.Equal(t, service["name"], c.InstanceID)
		require.True(t, c.CloudSQLIAM)
		require.False(t, c.TakesCommands())
		require.Equal(t, "escrow-relayer-database-url", secrets["DATABASE_URL"])
		require.Empty(t, mounted)
		require.Equal(t, "INGRESS_TRAFFIC_INTERNAL_ONLY", service["ingress"])
		require.EqualValues(t, 1, inner(service, "scaling")["min_instance_count"])
		require.EqualValues(t, 1, inner(service, "template", "scaling")["max_instance_count"])
		require.Equal(t, "EXECUTION_ENVIRONMENT_GEN2", inner(service, "template")["execution_environment"])
		relayer := inner(service, "template", "containers")
		require.Equal(t, false, inner(relayer, "resources")["cpu_idle"])
		for _, probe := range []string{"startup_probe", "liveness_probe"} {
			require.Equal(t, "/healthz", inner(relayer, probe, "http_get")["path"], probe)
		}
	}

	for address := range wanted {
		for _, keys := range []string{"google_kms", ".keys", "commands", `["senders"]`} {
			require.NotContains(t, address, keys, "nobody asked for commands")
		}
	}
}

// The first services act on commands, as another account and login, with the files; the others have nothing of it.
func TestTerraformMakesServicesWithKeys(t *testing.T) {
	t.Parallel()
	all, wanted := services(t, true)
	for _, address := range []string{`google_kms_crypto_key.sender["arbiter"]`, `google_kms_key_ring.senders[0]`,
		`google_pubsub_topic_iam_member.requesters["serviceAccount:settlement@fusion-prime.iam.gserviceaccount.com"]`,
		`google_secret_manager_secret.this["policy"]`, `google_sql_user.keys[0]`} {
		require.Contains(t, wanted, address)
	}

	for i, service := range all {
		c, secrets, mounted := configured(t, service)
		account, keyed := "escrow-relayer", i < 2
		if keyed {
			account = "escrow-relayer-keys"
			require.ElementsMatch(t, []string{c.SendersFile, c.PolicyFile}, mounted)
		}

		require.Equal(t, keyed, c.TakesCommands(), "%d", i)
		require.Equal(t, account+"@fusion-prime.iam.gserviceaccount.com", inner(service, "template")["service_account"])
		require.Equal(t, account+"-database-url", secrets["DATABASE_URL"])
		require.Equal(t, keyed, len(mounted) > 0)
	}
}

// A variable that the relayer takes for a secret is refused among the plain ones, which everybody reads that may look
// at a service; so is one that would give the keys to every service.
func TestTerraformRefusesSecretsAmongPlainVariables(t *testing.T) {
	t.Parallel()
	m := readModule(t)
	refused := map[string]bool{}
	for _, b := range m.blocks["variable.env"].Body.Blocks {
		condition := m.expression(t, b.Body, "condition")
		require.Contains(t, condition, "setintersection(keys(var.env)")
		for _, name := range regexp.MustCompile(`"([A-Z_]+)"`).FindAllStringSubmatch(condition, -1) {
			refused[name[1]] = true
		}
	}

	for name, secret := range configuration() {
		if secret {
			require.Contains(t, refused, name)
		}
	}

	for _, name := range []string{"INSTANCE_ID", "PARTITION_NUMBER", "TOTAL_PARTITIONS", "SENDERS_FILE",
		"COMMANDS_POLICY_FILE", "COMMANDS_SUBSCRIPTION_ID", "COMMANDS_HTTP", "COMMANDS_PORT", "REPLIES_TOPIC_ID",
		"KEEPER_SENDER"} {
		require.Contains(t, refused, name)
	}
}
