//go:build helm

package deploy

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/fusion-prime/escrow-relayer/relayer/config"
)

type object = map[string]any

// helm renders the chart with values of a file and more.
func helm(t *testing.T, values string, more ...string) (rendered []byte, err error) {
	t.Helper()
	args := append([]string{"run", "helm.sh/helm/v4/cmd/helm@" + helmVersion(t), "template", "escrow-relayer", "chart",
		"-f", "chart/examples/" + values + ".yaml"}, more...)
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Env = append(os.Environ(), "GOFLAGS=-ldflags=-s")
	var said bytes.Buffer
	cmd.Stderr = &said
	if rendered, err = cmd.Output(); err != nil {
		err = errors.New(said.String())
	}

	return rendered, err
}

// helmVersion is that of check.sh.
func helmVersion(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("check.sh")
	require.NoError(t, err)
	_, after, ok := strings.Cut(string(text), "helm.sh/helm/v4/cmd/helm@")
	require.True(t, ok)

	return strings.Fields(after)[0]
}

// objects are those that the chart makes, by kind and name.
func objects(t *testing.T, values string, more ...string) map[string]object {
	t.Helper()
	text, err := helm(t, values, more...)
	require.NoError(t, err)
	all := map[string]object{}
	for d := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var o object
		err := d.Decode(&o)
		if errors.Is(err, io.EOF) {
			return all
		}

		require.NoError(t, err)
		all[o["kind"].(string)+" "+at(o, "metadata")["name"].(string)] = o
	}
}

func at(o object, path ...string) object {
	for _, p := range path {
		o = o[p].(object)
	}

	return o
}

// starts loads the configuration of a pod as the relayer does, and returns its chains.
func starts(t *testing.T, all map[string]object, workload string) []*config.Config {
	t.Helper()
	pod := at(all[workload], "spec", "template", "spec")
	container := pod["containers"].([]any)[0].(object)
	env := map[string]string{"SEPOLIA_RPC_URLS": "https://node.example/a", "BASE_RPC_URLS": "https://node.example/b",
		"DATABASE_URL": "postgresql://u:p@db/relayer"}
	for _, e := range container["env"].([]any) {
		name := e.(object)["name"].(string)
		if name == "GOOGLE_APPLICATION_CREDENTIALS" { // Google's libraries read it
			continue
		}

		require.Contains(t, configuration(), name)
		switch value, plain := e.(object)["value"].(string); {
		case plain:
			env[name] = value
		case name == "INSTANCE_ID":
			env[name] = "relayer-0"
		case name == "PARTITION_NUMBER":
			env[name] = "0"
		default:
			require.Equal(t, "DATABASE_URL", name)
		}
	}

	mount := container["volumeMounts"].([]any)[0].(object)
	require.Equal(t, env["CONFIG_FILE"], mount["mountPath"])
	env["CONFIG_FILE"] = filepath.Join(t.TempDir(), "chains.yaml")
	file := at(all["ConfigMap escrow-relayer"], "data")[mount["subPath"].(string)].(string)
	require.NoError(t, os.WriteFile(env["CONFIG_FILE"], []byte(file), 0o600))
	chains, err := config.Chains(env, config.Load)
	require.NoError(t, err)

	return chains
}

// The relayer accepts what each pod gets, and the alerts are those of `plan alerts`.
func TestChart(t *testing.T) {
	t.Parallel()
	all := objects(t, "eks")
	chains := starts(t, all, "StatefulSet escrow-relayer")
	require.Len(t, chains, 2)
	require.Len(t, chains[0].Factories, 2)
	require.Equal(t, 3, chains[0].Total)
	require.Equal(t, 3, at(all["StatefulSet escrow-relayer"], "spec")["replicas"])
	require.NotContains(t, all, "StatefulSet escrow-relayer-keys")
	for _, chain := range []int64{11155111, 8453} {
		fleet := Fleet{Chain: chain}
		text, err := Alerts(fleet)
		require.NoError(t, err)
		require.Equal(t, decoded(t, text), at(all["PrometheusRule escrow-relayer-"+fleet.String()], "spec"))
	}

	dashboard, err := os.ReadFile("grafana/dashboard.json")
	require.NoError(t, err)
	require.Equal(t, string(dashboard), at(all["ConfigMap escrow-relayer-dashboard"], "data")["escrow-relayer.json"])

	all = objects(t, "kind")
	require.Equal(t, 3, starts(t, all, "Deployment escrow-relayer")[0].Total)
	require.Equal(t, 4, at(all["Deployment escrow-relayer"], "spec")["replicas"], "one stands by")
	require.NotContains(t, all, "PodMonitor escrow-relayer")
}

// Pods with keys differ from the others in their account, their login, the keys and the way in.
func TestChartKeys(t *testing.T) {
	t.Parallel()
	all := objects(t, "gke")
	plain, keys := all["StatefulSet escrow-relayer"], all["StatefulSet escrow-relayer-keys"]
	require.Equal(t, 1, at(plain, "spec")["replicas"])
	require.Equal(t, 2, at(keys, "spec")["replicas"])
	require.Equal(t, 1, at(keys, "spec", "ordinals")["start"], "partitions 1 and 2")
	require.NotEqual(t, at(plain, "spec", "selector"), at(keys, "spec", "selector"))
	require.False(t, starts(t, all, "StatefulSet escrow-relayer")[0].TakesCommands())
	c := starts(t, all, "StatefulSet escrow-relayer-keys")[0]
	require.True(t, c.TakesCommands())

	pod, other := at(keys, "spec", "template", "spec"), at(plain, "spec", "template", "spec")
	require.NotEqual(t, other["serviceAccountName"], pod["serviceAccountName"])
	files := pod["volumes"].([]any)[1].(object)
	require.Equal(t, object{"secretName": "escrow-relayer-keys", "defaultMode": 0o440}, files["secret"])
	rights := at(pod, "securityContext")
	require.Equal(t, rights["runAsGroup"], rights["fsGroup"], "it can read them")
	container, without := pod["containers"].([]any)[0].(object), other["containers"].([]any)[0].(object)
	mount := container["volumeMounts"].([]any)[1].(object)
	require.Equal(t, files["name"], mount["name"])
	require.Equal(t, mount["mountPath"], path.Dir(c.SendersFile))
	require.Equal(t, mount["mountPath"], path.Dir(c.PolicyFile))
	require.Equal(t, c.CommandsPort, container["ports"].([]any)[1].(object)["containerPort"])
	for _, e := range without["env"].([]any) {
		require.NotEqual(t, "DATABASE_URL", e.(object)["name"], "the login that may sign")
		require.Contains(t, container["env"], e)
	}

	for _, name := range []string{"env", "volumeMounts", "ports"} {
		delete(container, name)
		delete(without, name)
	}

	delete(pod, "serviceAccountName")
	delete(other, "serviceAccountName")
	delete(pod, "volumes")
	delete(other, "volumes")
	delete(rights, "fsGroup")
	require.Equal(t, other, pod)
}

// What the chart makes for each of the platforms has the names that CI, without helm, compares runbooks with.
func TestChartNames(t *testing.T) {
	t.Parallel()
	var names []string
	for _, platform := range []string{"eks", "gke", "kind"} {
		for name, o := range objects(t, platform) {
			names = append(names, platform+" "+name)
			labels := at(o, "metadata")["labels"].(object)
			if strings.HasPrefix(name, "Stateful") || strings.HasPrefix(name, "Deploy") {
				require.Equal(t, "escrow-relayer", labels["app.kubernetes.io/instance"], "%s of %s", name, platform)
				spec := at(o, "spec", "template", "spec")
				require.Equal(t, false, spec["enableServiceLinks"])
				require.Contains(t, at(o, "spec", "template", "metadata", "annotations"), "checksum/config")
			} else if strings.HasPrefix(name, "P") && strings.Contains(o["apiVersion"].(string), "coreos") {
				require.Equal(t, "monitoring", labels["release"], "%s: kube-prometheus-stack ignores it", name)
				job := object{"targetLabel": "job", "replacement": "escrow-relayer"} // RelayerInstanceDown asks for it
				if endpoints, ok := at(o, "spec")["podMetricsEndpoints"].([]any); ok {
					require.Contains(t, endpoints[0].(object)["relabelings"], job)
				}
			}
		}
	}

	slices.Sort(names)
	golden(t, "testdata/chart_names.txt", []byte(strings.Join(names, "\n")+"\n"))
}

func TestChartRefuses(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"chains=null":            "chains",
		"partitions=0":           "partitions",
		"env.RPC_URLS=https://x": "RPC_URLS",
		"image.tag=latest":       "tag",
		"typo=1":                 "typo",
		"keys.instances=4":       "keys.instances is 4: use at most partitions, 3",
		"kind=Deployment":        "use kind StatefulSet",
		"standby=1":              "use kind Deployment",
	} {
		_, err := helm(t, "gke", "--set", value)
		require.ErrorContains(t, err, want, value)
	}
}
