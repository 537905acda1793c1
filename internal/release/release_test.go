package release

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const root = "../.."

// The notices name what is linked, in the versions of go.mod, and every module may be passed on.
func TestNoticesAreUpToDate(t *testing.T) {
	t.Parallel()
	modules, err := Modules(t.Context(), root, Platforms...)
	require.NoError(t, err)
	want, err := Notices(modules)
	require.NoError(t, err)
	have, err := os.ReadFile(root + "/deploy/THIRD_PARTY_NOTICES")
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, have), "deploy/THIRD_PARTY_NOTICES is not what go.mod says: make notices")
	require.Regexp(t, `LGPL-3.0-only +github.com/ethereum/go-ethereum v`, string(have))
	require.Contains(t, string(have), "GNU GENERAL PUBLIC LICENSE\n", "LGPL-3.0 builds on it")

	parts, err := SBOM(modules, "v0", time.Unix(0, 0))
	require.NoError(t, err)
	var bom struct {
		BomFormat  string
		Components []struct{ Name, Version, PURL string }
	}
	require.NoError(t, json.Unmarshal(parts, &bom))
	require.Equal(t, "CycloneDX", bom.BomFormat)
	require.Len(t, bom.Components, len(modules))
}

func TestAModuleWithoutALicenceIsRefused(t *testing.T) {
	t.Parallel()
	m := Module{Path: "example.com/x", Version: "v1", dir: t.TempDir()}
	_, err := Notices([]Module{m})
	require.ErrorContains(t, err, "example.com/x has no licence file")
	require.NoError(t, os.WriteFile(filepath.Join(m.dir, "LICENSE"), []byte("You may look at it."), 0o600))
	_, err = Notices([]Module{m})
	require.ErrorContains(t, err, "not one that this knows")
}
