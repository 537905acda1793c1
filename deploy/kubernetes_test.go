package deploy

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/fusion-prime/escrow-relayer/relayer/config"
)

// workload is the part of a StatefulSet or Deployment that must fit the rest.
type workload struct {
	Kind string
	Spec struct {
		Replicas    int
		ServiceName string `yaml:"serviceName"`
		Selector    struct {
			MatchLabels map[string]string `yaml:"matchLabels"`
		}
		Template struct {
			Metadata struct{ Labels map[string]string }
			Spec     map[string]any
		}
	}
}

type kustomization struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Namespace  string
	Resources  []string
	Components []string
	Images     []struct {
		Name    string
		NewName string `yaml:"newName"`
		NewTag  string `yaml:"newTag"`
	}
	Labels []struct {
		Pairs            map[string]string
		IncludeTemplates bool `yaml:"includeTemplates"`
	}
	ConfigMapGenerator []struct {
		Name     string
		Behavior string
		Literals []string
		Files    []string
	} `yaml:"configMapGenerator"`
	Patches []struct {
		Target map[string]string
		Patch  string
	}
}

// Every file of the folder is YAML, and every kustomization lists exactly what lies beside it.
func TestKubernetesFiles(t *testing.T) {
	t.Parallel()
	require.NoError(t, filepath.WalkDir("kubernetes", func(name string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || entry.Name() == "chains.yaml" { // which is the relayer's
			return err
		}

		data, err := os.ReadFile(name)
		require.NoError(t, err)
		d := yaml.NewDecoder(bytes.NewReader(data))
		for {
			var object struct {
				APIVersion string `yaml:"apiVersion"`
				Kind       string
			}
			err := d.Decode(&object)
			if errors.Is(err, io.EOF) {
				break
			}

			require.NoError(t, err, name)
			require.NotEmpty(t, object.APIVersion, name)
			require.NotEmpty(t, object.Kind, name)
		}

		if entry.Name() != "kustomization.yaml" {
			return nil
		}

		var k kustomization
		strictYAML(t, name, &k)
		siblings, err := filepath.Glob(filepath.Join(filepath.Dir(name), "*.yaml"))
		require.NoError(t, err)
		listed := map[string]bool{"kustomization.yaml": true}
		for _, r := range append(k.Resources, k.Components...) {
			_, err := os.Stat(filepath.Join(filepath.Dir(name), r))
			require.NoError(t, err, name)
			listed[r] = true
		}

		for _, g := range k.ConfigMapGenerator {
			for _, f := range g.Files {
				listed[f] = true
			}
		}

		for _, s := range siblings {
			require.True(t, listed[filepath.Base(s)], "%s does not list %s", name, filepath.Base(s))
		}

		return nil
	}))
}

func TestKubernetesOverlays(t *testing.T) {
	t.Parallel()
	pods := map[string]map[string]any{}
	for _, overlay := range []string{"statefulset", "deployment"} {
		dir := filepath.Join("kubernetes/overlays", overlay)
		var k kustomization
		strictYAML(t, filepath.Join(dir, "kustomization.yaml"), &k)
		var w workload
		data, err := os.ReadFile(filepath.Join(dir, overlay+".yaml"))
		require.NoError(t, err)
		require.NoError(t, yaml.Unmarshal(data, &w))

		// The relayer accepts the configuration, and it fits the number of pods.
		env := map[string]string{"INSTANCE_ID": "escrow-relayer-0", "PARTITION_NUMBER": "0",
			"DATABASE_URL": "postgresql://u:p@db/relayer", "RPC_URLS": "https://node.example/key"}
		for _, l := range k.ConfigMapGenerator[0].Literals {
			name, value, ok := strings.Cut(l, "=")
			require.True(t, ok)
			require.NotContains(t, secretVariables, name, "belongs into the secret")
			require.Contains(t, configuration(), name)
			env[name] = value
		}

		c, err := config.Load(env)
		require.NoError(t, err)
		require.Equal(t, w.Spec.Replicas, c.Total, "%s: replicas and TOTAL_PARTITIONS", overlay)
		require.Equal(t, env["CHAIN_ID"], k.Labels[0].Pairs["chain-id"], "%s: label and CHAIN_ID", overlay)
		require.True(t, k.Labels[0].IncludeTemplates)
		require.NotEqual(t, "latest", k.Images[0].NewTag)
		require.Equal(t, w.Spec.Selector.MatchLabels, w.Spec.Template.Metadata.Labels)
		pods[overlay] = w.Spec.Template.Spec
	}

	// The two kinds run the same pod, but for the partition number.
	partition := func(spec map[string]any) any {
		container := spec["containers"].([]any)[0].(map[string]any)
		env := container["env"].([]any)
		last := env[len(env)-1].(map[string]any)
		require.Equal(t, "PARTITION_NUMBER", last["name"])
		container["env"] = env[:len(env)-1]
		delete(last, "name")

		return last
	}
	index := map[string]any{"fieldPath": "metadata.labels['apps.kubernetes.io/pod-index']"}
	require.Equal(t, map[string]any{"valueFrom": map[string]any{"fieldRef": index}}, partition(pods["statefulset"]))
	require.Equal(t, map[string]any{"value": "auto"}, partition(pods["deployment"]))
	require.Equal(t, pods["statefulset"], pods["deployment"])

	container := pods["statefulset"]["containers"].([]any)[0].(map[string]any)
	for probe, path := range map[string]string{"startupProbe": "/healthz", "livenessProbe": "/healthz",
		"readinessProbe": "/readyz"} {
		get := container[probe].(map[string]any)["httpGet"].(map[string]any)
		require.Equal(t, map[string]any{"path": path, "port": "http"}, get, probe)
	}

	security := container["securityContext"].(map[string]any)
	require.Equal(t, true, security["readOnlyRootFilesystem"])
	require.Equal(t, false, security["allowPrivilegeEscalation"])
}

// The pods with several chains have the file that CONFIG_FILE names, and nothing besides: the relayer accepts it with
// the variables of the secret.
func TestKubernetesChains(t *testing.T) {
	t.Parallel()
	const dir = "kubernetes/overlays/chains/"
	var k kustomization
	strictYAML(t, dir+"kustomization.yaml", &k)
	env := map[string]string{"INSTANCE_ID": "escrow-relayer-0", "PARTITION_NUMBER": "0",
		"DATABASE_URL": "postgresql://u:p@db/relayer", "SEPOLIA_RPC_URLS": "https://node.example/a,wss://node.example/b",
		"BASE_RPC_URLS": "https://node.example/c,https://other.example/d"}
	require.Equal(t, "replace", k.ConfigMapGenerator[0].Behavior, "variables of one chain hide what the file says")
	for _, l := range k.ConfigMapGenerator[0].Literals {
		name, value, _ := strings.Cut(l, "=")
		require.Contains(t, configuration(), name)
		env[name] = value
	}

	file := k.ConfigMapGenerator[1]
	patch := decoded(t, []byte(k.Patches[0].Patch))
	pod := patch["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
	volume := pod["volumes"].([]any)[0].(map[string]any)
	mount := pod["containers"].([]any)[0].(map[string]any)["volumeMounts"].([]any)[0].(map[string]any)
	require.Equal(t, map[string]any{"name": file.Name}, volume["configMap"])
	require.Equal(t, volume["name"], mount["name"])
	require.Equal(t, env["CONFIG_FILE"], filepath.Join(mount["mountPath"].(string), file.Files[0]))
	env["CONFIG_FILE"] = dir + file.Files[0]
	all, err := config.Chains(env, config.Load)
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.Len(t, all[0].Factories, 2)
	for _, c := range all {
		require.Empty(t, c.Warnings)
		require.Len(t, c.RPCURLs, 2)
	}
}

// The pods with keys are those of the StatefulSet, and have an account, the keys and the way in besides.
func TestKubernetesKeys(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("kubernetes/overlays/commands/keys.yaml")
	require.NoError(t, err)
	var keys map[string]any
	d := yaml.NewDecoder(bytes.NewReader(text))
	for keys["kind"] != "StatefulSet" {
		keys = nil
		require.NoError(t, d.Decode(&keys), "keys.yaml ends without a StatefulSet")
	}

	text, err = os.ReadFile("kubernetes/overlays/statefulset/statefulset.yaml")
	require.NoError(t, err)
	plain := decoded(t, text)
	at := func(object map[string]any, path ...string) map[string]any {
		for _, p := range path {
			object = object[p].(map[string]any)
		}

		return object
	}

	// Partitions: one pod without keys, the others after it.
	var k kustomization
	strictYAML(t, "kubernetes/overlays/commands/kustomization.yaml", &k)
	patch := at(decoded(t, []byte(k.Patches[0].Patch)), "spec")
	require.Equal(t, patch["replicas"], at(keys, "spec", "ordinals")["start"])
	require.Equal(t, at(plain, "spec")["replicas"], patch["replicas"].(int)+at(keys, "spec")["replicas"].(int),
		"TOTAL_PARTITIONS stays what it is")

	// Selectors that do not fit each other's pods.
	require.NotEqual(t, at(patch, "selector", "matchLabels")["app.kubernetes.io/component"],
		at(keys, "spec", "selector", "matchLabels")["app.kubernetes.io/component"])
	require.Equal(t, at(keys, "spec", "selector", "matchLabels"), at(keys, "spec", "template", "metadata", "labels"))

	// What the pods have besides, and then nothing differs.
	pod, other := at(keys, "spec", "template", "spec"), at(plain, "spec", "template", "spec")
	require.Equal(t, "escrow-relayer-keys", pod["serviceAccountName"])
	pod["serviceAccountName"] = other["serviceAccountName"]
	files := pod["volumes"].([]any)[0].(map[string]any)
	require.Equal(t, map[string]any{"secretName": "escrow-relayer-keys", "defaultMode": 0o440}, files["secret"])
	require.Equal(t, at(pod, "securityContext")["runAsGroup"], at(pod, "securityContext")["fsGroup"], "it can read them")
	delete(pod, "volumes")
	delete(at(pod, "securityContext"), "fsGroup")

	container := pod["containers"].([]any)[0].(map[string]any)
	mount := container["volumeMounts"].([]any)[0].(map[string]any)
	require.Equal(t, files["name"], mount["name"])
	require.Equal(t, true, mount["readOnly"])
	delete(container, "volumeMounts")
	ports := container["ports"].([]any)
	commands := ports[1].(map[string]any)
	container["ports"] = ports[:1]

	env := map[string]string{"CHAIN_ID": "1", "FACTORY_ADDRESS": "0x311E63dfcEfe7f2c202715ef0DF01CDA82f58914",
		"START_BLOCK": "1", "PUBSUB_PROJECT_ID": "fusion-prime", "PUBSUB_TOPIC_ID": "events",
		"INSTANCE_ID":      "escrow-relayer-keys-1",
		"PARTITION_NUMBER": "1", "TOTAL_PARTITIONS": "3", "DATABASE_URL": "postgresql://u:p@db/relayer",
		"RPC_URLS": "https://node.example/key"}
	all := container["env"].([]any)
	for _, e := range all {
		if v := e.(map[string]any); v["value"] != nil {
			env[v["name"].(string)] = v["value"].(string)
			all = all[1:]
		}
	}

	container["env"] = all
	require.Equal(t, other, pod)
	c, err := config.Load(env)
	require.NoError(t, err)
	require.True(t, c.TakesCommands())
	require.Equal(t, commands["containerPort"], c.CommandsPort)
	require.Equal(t, mount["mountPath"], filepath.Dir(c.SendersFile))
	require.Equal(t, mount["mountPath"], filepath.Dir(c.PolicyFile))
}
