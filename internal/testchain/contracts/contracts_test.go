package contracts_test

import (
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/ethereum/go-ethereum/accounts/abi/abigen"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write contracts.go")

type artefacts struct {
	Sources   map[string]string
	Contracts []struct {
		Name string
		ABI  json.RawMessage
		Bin  string
	}
}

func read(t *testing.T) (a artefacts) {
	raw, err := os.ReadFile("contracts.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &a))

	return a
}

func TestArtefactsBelongToTheSources(t *testing.T) {
	files, err := filepath.Glob("*.sol")
	require.NoError(t, err)
	got := map[string]string{}
	for _, file := range files {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		got[file] = fmt.Sprintf("%x", sha256.Sum256(source))
	}

	require.Equal(t, got, read(t).Sources, "contracts.json was compiled from other sources; run make generate")
}

func TestBindings(t *testing.T) {
	var names, abis, bins []string
	for _, c := range read(t).Contracts {
		names, abis, bins = append(names, c.Name), append(abis, string(c.ABI)), append(bins, c.Bin)
	}

	code, err := abigen.BindV2(names, abis, bins, "contracts", nil, nil)
	require.NoError(t, err)
	if *update {
		require.NoError(t, os.WriteFile("contracts.go", []byte(code), 0o644))
	}

	committed, err := os.ReadFile("contracts.go")
	require.NoError(t, err)
	require.Equal(t, string(committed), code, "contracts.go was not generated from contracts.json; run make generate")
}
