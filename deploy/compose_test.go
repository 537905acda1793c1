package deploy

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
	"github.com/fusion-prime/escrow-relayer/relayer/config"
)

// composeFile has the fields that compose.yaml uses, as the Compose specification names them; any other is a mistake.
type composeFile struct {
	Name        string            `yaml:"name"`
	Relayer     composeService    `yaml:"x-relayer"`
	Environment map[string]string `yaml:"x-environment"`
	First       map[string]string `yaml:"x-first"`
	Second      map[string]string `yaml:"x-second"`
	Services    map[string]composeService
	Volumes     map[string]struct{}
}

type composeService struct {
	Image           string                                `yaml:"image"`
	Entrypoint      []string                              `yaml:"entrypoint"`
	Command         []string                              `yaml:"command"`
	Environment     map[string]string                     `yaml:"environment"`
	Ports           []string                              `yaml:"ports"`
	Volumes         []string                              `yaml:"volumes"`
	Restart         string                                `yaml:"restart"`
	ReadOnly        bool                                  `yaml:"read_only"`
	CapDrop         []string                              `yaml:"cap_drop"`
	SecurityOpt     []string                              `yaml:"security_opt"`
	StopGracePeriod string                                `yaml:"stop_grace_period"`
	DependsOn       map[string]struct{ Condition string } `yaml:"depends_on"`
	Healthcheck     struct {
		Test              []string
		Interval, Timeout string
		Retries           int
	} `yaml:"healthcheck"`
}

func TestCompose(t *testing.T) {
	t.Parallel()
	var f composeFile
	strictYAML(t, "compose/compose.yaml", &f)
	hostPorts := map[string]string{}
	for name, s := range f.Services {
		require.Regexp(t, `^[a-z0-9./-]+:[a-zA-Z0-9._-]+$`, s.Image, "%s: an image has an exact tag", name)
		require.NotRegexp(t, `:latest$`, s.Image, name)
		for dep, d := range s.DependsOn {
			require.Contains(t, f.Services, dep, "%s depends on it", name)
			if d.Condition == "service_healthy" {
				require.NotEmpty(t, f.Services[dep].Healthcheck.Test, "%s waits for the health of %s", name, dep)
			}
		}

		for _, v := range s.Volumes {
			source, _, _ := strings.Cut(v, ":")
			if strings.HasPrefix(source, ".") {
				_, err := os.Stat(filepath.Join("compose", source))
				require.NoError(t, err, name)
			} else {
				require.Contains(t, f.Volumes, source, name)
			}
		}

		for _, p := range s.Ports {
			require.True(t, strings.HasPrefix(p, "127.0.0.1:"), "%s: %s would be open to the network", name, p)
			host := p[:strings.LastIndex(p, ":")]
			require.Empty(t, hostPorts[host], "%s and %s publish %s", name, hostPorts[host], host)
			hostPorts[host] = name
		}
	}

	for i, name := range []string{"relayer-0", "relayer-1", "relayer-2"} {
		env := maps.Clone(f.Services[name].Environment)
		require.Equal(t, name, env["INSTANCE_ID"])
		require.True(t, f.Services[name].ReadOnly)
		require.Equal(t, []string{"./chains.yaml:" + env["CONFIG_FILE"] + ":ro"}, f.Services[name].Volumes)
		env["CONFIG_FILE"] = "compose/chains.yaml"
		password := "${POSTGRES_PASSWORD" // which make compose generates
		require.Contains(t, env["DATABASE_URL"], password)
		require.Contains(t, f.Services["postgres"].Environment["POSTGRES_PASSWORD"], password)
		env["DATABASE_URL"] = regexp.MustCompile(`\$\{.*\}`).ReplaceAllString(env["DATABASE_URL"], "secret")
		all, err := config.Chains(env, config.Load)
		require.NoError(t, err)
		require.Len(t, all, 2)
		for j, nodes := range []string{"node", "second-node"} {
			c, used := all[j], []map[string]string{f.First, f.Second}[j]
			require.Equal(t, strconv.Itoa(i), c.Number)
			require.Equal(t, 3, c.Total)
			require.Empty(t, c.Warnings)
			require.Contains(t, f.Services[nodes].Entrypoint, fmt.Sprint(c.ChainID))
			require.Equal(t, "http://"+nodes+":8545", used["ETH_RPC_URL"])
			require.Contains(t, c.RPCURLs, used["ETH_RPC_URL"])
			var deployed []string
			for k, factory := range c.Factories {
				// contracts.sh deploys from anvil's first account, in this order, on a fresh chain
				address := crypto.CreateAddress(common.HexToAddress("0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"), uint64(k))
				require.Equal(t, address, factory.Address)
				deployed = append(deployed, address.Hex())
			}

			require.Equal(t, strings.Join(deployed, " "), used["FACTORIES"])
		}
	}

	scrape, err := os.ReadFile("compose/prometheus.yml")
	require.NoError(t, err)
	for _, m := range regexp.MustCompile(`relayer-\d+:(\d+)`).FindAllStringSubmatch(string(scrape), -1) {
		require.Equal(t, f.Environment["PORT"], m[1])
	}

	require.NotContains(t, string(scrape), "chain_id", "the relayer says it itself")
	alerts, err := os.ReadFile("prometheus/alerts.yaml")
	require.NoError(t, err)
	for _, chain := range []string{"31337", "31338"} {
		require.Contains(t, string(alerts), `chain_id="`+chain+`"`, "the alerts are for the chains of compose")
	}
}

// The factory that compose deploys is the one that the tests use.
func TestComposeFactoryIsCurrent(t *testing.T) {
	t.Parallel()
	golden(t, "compose/factory.hex", []byte(contracts.EscrowFactoryMetaData.Bin+"\n"))
}

func TestGrafanaProvisioning(t *testing.T) {
	t.Parallel()
	var sources struct {
		APIVersion  int `yaml:"apiVersion"`
		Datasources []struct {
			Name, UID, Type, Access, URL string
			IsDefault                    bool              `yaml:"isDefault"`
			JSONData                     map[string]string `yaml:"jsonData"`
		}
	}
	strictYAML(t, "grafana/provisioning/datasources/prometheus.yaml", &sources)
	require.Len(t, sources.Datasources, 1)
	var providers struct {
		APIVersion int `yaml:"apiVersion"`
		Providers  []struct {
			Name, Type     string
			AllowUIUpdates bool `yaml:"allowUiUpdates"`
			Options        struct{ Path string }
		}
	}
	strictYAML(t, "grafana/provisioning/dashboards/escrow-relayer.yaml", &providers)
	var f composeFile
	strictYAML(t, "compose/compose.yaml", &f)
	require.Contains(t, strings.Join(f.Services["grafana"].Volumes, " "),
		providers.Providers[0].Options.Path+"/dashboard.json")
	require.Contains(t, f.Services, strings.Split(strings.TrimPrefix(sources.Datasources[0].URL, "http://"), ":")[0])
}
