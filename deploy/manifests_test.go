package deploy

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/fusion-prime/escrow-relayer/relayer/config"
)

func input() ManifestInput {
	return ManifestInput{
		Project: "fusion-prime", Region: "us-central1", ServiceAccount: "escrow-relayer@fusion-prime.iam.gserviceaccount.com",
		Image:      "us-central1-docker.pkg.dev/fusion-prime/relayers/escrow-relayer:v1.2.3",
		Partitions: 3, ChainID: 11155111, Factory: "0x311E63dfcEfe7f2c202715ef0DF01CDA82f58914", StartBlock: 9508300,
		Topic: "settlement.events.v1", RetractionsTopic: "settlement.retractions.v1",
		CloudSQLInstance: "fusion-prime:us-central1:fp-relayer-registry",
	}
}

// withKeys is a fleet of three, two of which act on commands.
func withKeys() ManifestInput {
	in := input()
	in.Commands = &CommandsInput{
		Services: 2, ServiceAccount: "escrow-relayer-keys@fusion-prime.iam.gserviceaccount.com",
		Subscription: "escrow-relayer-commands", RepliesTopic: "settlement.command-answers.v1",
		SendersSecret: "escrow-relayer-senders:4", KeeperSender: "0x311E63dfcEfe7f2c202715ef0DF01CDA82f58914",
	}

	return in
}

func serviceSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	c.AssertContent()
	schema, err := c.Compile("testdata/cloudrun-service.schema.json")
	require.NoError(t, err)

	return schema
}

func decoded(t *testing.T, text []byte) map[string]any {
	t.Helper()
	var m map[string]any
	require.NoError(t, yaml.Unmarshal(text, &m))

	return m
}

func TestManifestsGolden(t *testing.T) {
	t.Parallel()
	schema := serviceSchema(t)
	variant := input()
	variant.Partitions, variant.Strategy, variant.Prefix = 1, "consistent", "sepolia"
	variant.RetractionsTopic, variant.CloudSQLInstance = "", ""
	variant.CPU, variant.Memory = "2", "2Gi"
	variant.Env = map[string]string{"CONFIRMATIONS": "6", "EXPLORER_URL": "https://sepolia.etherscan.io",
		"LOG_FORMAT": "text"}
	variant.Secrets = map[string]string{"DATABASE_URL": "db", "RPC_URLS": "rpc:7", "SESSION_DATABASE_URL": "db-direct"}
	for name, in := range map[string]ManifestInput{"three": input(), "one": variant, "commands": withKeys()} {
		manifests, err := Manifests(in)
		require.NoError(t, err)
		require.Len(t, manifests, in.Partitions)
		for i, m := range manifests {
			require.Equal(t, i, m.Partition)
			require.NoError(t, schema.Validate(decoded(t, m.YAML)), m.Name)
			golden(t, fmt.Sprintf("testdata/manifests/%s/%s.yaml", name, m.Name), m.YAML)
		}
	}

	text := Monitoring()
	golden(t, "testdata/manifests/monitoring.yaml", text)
}

// The relayer reads every variable that a manifest sets, and accepts the whole.
func TestManifestsAreValidConfiguration(t *testing.T) {
	t.Parallel()
	manifests, err := Manifests(input())
	require.NoError(t, err)
	known := configuration()
	seen := map[string]bool{}
	for _, m := range manifests {
		env := plainEnv(t, m.YAML)
		for name := range env {
			require.Contains(t, known, name, "the relayer does not read it")
		}

		env["DATABASE_URL"] = "postgresql://escrow-relayer%40fusion-prime.iam@/relayer"
		env["RPC_URLS"] = "https://node.example/key"
		c, err := config.Load(env)
		require.NoError(t, err)
		require.Equal(t, m.Partition, c.Partition.Number)
		require.Equal(t, 3, c.Partition.Total)
		require.True(t, c.CloudSQLIAM)
		require.False(t, seen[c.InstanceID], "every instance has its own id")
		seen[c.InstanceID] = true
	}
}

// The services with keys have what commands need and another account; the others have nothing of it,
// and run as they do in a fleet without commands.
func TestOnlyTheServicesWithKeysHaveThem(t *testing.T) {
	t.Parallel()
	plain, err := Manifests(input())
	require.NoError(t, err)
	in := withKeys()
	manifests, err := Manifests(in)
	require.NoError(t, err)
	require.Equal(t, string(plain[2].YAML), string(manifests[2].YAML))
	require.Equal(t, "escrow-relayer-senders:4", in.Commands.SendersSecret)
	require.Empty(t, in.Commands.PolicySecret, "the caller's input stays as it is")
	for i, m := range manifests[:2] {
		require.Contains(t, string(m.YAML), `serviceAccountName: "escrow-relayer-keys@fusion-prime.iam.gserviceaccount.com"`)
		require.NotContains(t, string(m.YAML), `name: "escrow-relayer-database-url"`)
		env := plainEnv(t, m.YAML)
		for name := range plainEnv(t, plain[i].YAML) {
			require.Contains(t, env, name)
		}

		env["DATABASE_URL"] = "postgresql://escrow-relayer-keys%40fusion-prime.iam@/relayer"
		env["RPC_URLS"] = "https://node.example/key"
		c, err := config.Load(env)
		require.NoError(t, err)
		require.True(t, c.TakesCommands())
		for _, file := range []string{c.SendersFile, c.PolicyFile} {
			require.Contains(t, mountedFiles(t, m.YAML), file)
		}
	}
}

// mountedFiles are the paths of the files that a manifest makes of secrets for the relayer.
func mountedFiles(t *testing.T, manifest []byte) (files []string) {
	t.Helper()
	var m struct {
		Spec struct {
			Template struct {
				Spec struct {
					Containers []struct {
						VolumeMounts []struct {
							Name      string
							MountPath string `yaml:"mountPath"`
						} `yaml:"volumeMounts"`
					}
					Volumes []struct {
						Name   string
						Secret struct{ Items []struct{ Path string } }
					}
				}
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(manifest, &m))
	for _, mount := range m.Spec.Template.Spec.Containers[0].VolumeMounts {
		for _, v := range m.Spec.Template.Spec.Volumes {
			if v.Name == mount.Name {
				files = append(files, mount.MountPath+"/"+v.Secret.Items[0].Path)
			}
		}
	}

	return files
}

// plainEnv is the environment of the relayer's container, without what comes from secrets.
func plainEnv(t *testing.T, manifest []byte) map[string]string {
	t.Helper()
	var m struct {
		Spec struct {
			Template struct {
				Spec struct {
					Containers []struct {
						Env []struct{ Name, Value string }
					}
				}
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(manifest, &m))
	env := map[string]string{}
	for _, e := range m.Spec.Template.Spec.Containers[0].Env {
		if e.Value != "" {
			env[e.Name] = e.Value
		}
	}

	return env
}

func TestManifestsRefuseWhatIsWrong(t *testing.T) {
	t.Parallel()
	_, err := Manifests(ManifestInput{Partitions: 0, Prefix: "Bad", Strategy: "random", CloudSQLInstance: "x"})
	for _, want := range []string{"prefix", "project", "region", "image", "service account", "0 partitions", "strategy",
		"chain id", "factory", "topic", "Cloud SQL instance"} {
		require.ErrorContains(t, err, want, "all problems are reported together")
	}

	for _, variable := range []string{"RPC_URL", "RPC_URLS", "DATABASE_URL", "SESSION_DATABASE_URL", "PORT",
		"TOTAL_PARTITIONS", "lower"} {
		in := input()
		in.Env = map[string]string{variable: "https://user:hunter2@node.example"}
		_, err := Manifests(in)
		require.ErrorContains(t, err, variable)
		require.NotContains(t, err.Error(), "hunter2")
	}

	in := input()
	in.Factory += "@9508300," + in.Factory
	_, err = Manifests(in)
	require.NoError(t, err, "several factories")
	in.Factory += "@x"
	_, err = Manifests(in)
	require.ErrorContains(t, err, "ADDRESS@START_BLOCK")

	in = input()
	in.Secrets = map[string]string{"RPC_URLS": "not a name"}
	_, err = Manifests(in)
	require.ErrorContains(t, err, "DATABASE_URL is missing")
	require.ErrorContains(t, err, `"not a name"`)
}

func TestManifestsRefuseWrongKeys(t *testing.T) {
	t.Parallel()
	in := withKeys()
	in.Commands = &CommandsInput{Services: 4, ServiceAccount: in.ServiceAccount, KeeperSender: "arbiter",
		PolicySecret: "policy:latest"}
	_, err := Manifests(in)
	for _, want := range []string{"4 services with keys", "one of its own", "commands subscription", "replies topic",
		"keeper sender", `"policy:latest"`} {
		require.ErrorContains(t, err, want)
	}

	for _, variable := range keyVariables {
		in := withKeys()
		in.Env = map[string]string{variable: "x"}
		_, err := Manifests(in)
		require.ErrorContains(t, err, variable, "it would go to the services without keys too")
	}
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

// What is a secret for the relayer's configuration is a secret here.
func TestSecretVariablesAreThoseOfTheConfiguration(t *testing.T) {
	t.Parallel()
	var secret []string
	for name, isSecret := range configuration() {
		if isSecret {
			secret = append(secret, name)
		}
	}

	require.ElementsMatch(t, secret, secretVariables)
}

func TestManifestsQuoteWhatTheyAreGiven(t *testing.T) {
	t.Parallel()
	in := input()
	in.Env = map[string]string{"EXPLORER_URL": "https://x/?a=\"b\"\n  - name: INJECTED", "LOG_LEVEL": "yes"}
	manifests, err := Manifests(in)
	require.NoError(t, err)
	env := plainEnv(t, manifests[0].YAML)
	require.Equal(t, in.Env["EXPLORER_URL"], env["EXPLORER_URL"])
	require.Equal(t, "yes", env["LOG_LEVEL"])
	require.NotContains(t, env, "INJECTED")
	require.NoError(t, serviceSchema(t).Validate(decoded(t, manifests[0].YAML)))
}

// The schema is worth something only if it refuses.
func TestSchemaRefuses(t *testing.T) {
	t.Parallel()
	schema := serviceSchema(t)
	manifests, err := Manifests(input())
	require.NoError(t, err)
	text := string(manifests[0].YAML)
	for what, change := range map[string][2]string{
		"a misspelt field":        {"containerConcurrency:", "containerConcurency:"},
		"a misspelt annotation":   {"run.googleapis.com/cpu-throttling", "run.googleapis.com/cpu-throtling"},
		"a number as annotation":  {`maxScale: "1"`, `maxScale: 1`},
		"a probe with exec":       {"httpGet:", "exec:"},
		"an unknown ingress":      {"ingress: internal", "ingress: private"},
		"a fraction of a CPU":     {`cpu: "1"`, `cpu: "1.5"`},
		"a timeout over the hour": {"timeoutSeconds: 3600", "timeoutSeconds: 7200"},
		"PORT, which is reserved": {"name: CHAIN_ID", "name: PORT"},
	} {
		broken := strings.Replace(text, change[0], change[1], 1)
		require.NotEqual(t, text, broken, what)
		require.Error(t, schema.Validate(decoded(t, []byte(broken))), what)
	}
}
