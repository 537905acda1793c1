package release

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

const noticesHead = `Third-party notices
===================

The escrow relayer is licensed under Apache-2.0 (LICENSE). Its binary links the modules below statically, each under its own licence.

github.com/ethereum/go-ethereum is licensed under LGPL-3.0: the library, not its commands. You may replace it by a version of your own: the
complete source of the relayer is public, go.mod names the exact version, and this builds the binary with another one:

    go mod edit -replace github.com/ethereum/go-ethereum=/path/to/yours
    make build

Nothing in this project's terms forbids that, or reverse engineering for debugging such a change. The text of LGPL-3.0 and of the GPL-3.0 that it
builds on are below.

Written by make notices from what go list says of every platform; a test compares.

`

// Notices is the text that goes with every binary: each module with its licence, then the texts, each once.
func Notices(modules []Module) ([]byte, error) {
	var list, all strings.Builder
	seen := map[string]bool{}
	for _, m := range modules {
		id, texts, err := m.licence()
		if err != nil {
			return nil, err
		}

		fmt.Fprintf(&list, "%-14s %s %s\n", id, m.Path, m.Version)
		if len(texts) == 0 {
			fmt.Fprintf(&list, "%14s stated in its source files\n", "")
		}

		for _, t := range texts {
			sum := sha256.Sum256(t.content)
			key := hex.EncodeToString(sum[:8])
			fmt.Fprintf(&list, "%14s %s: text %s\n", "", t.name, key)
			if !seen[key] {
				seen[key] = true
				fmt.Fprintf(&all, "\n%s\ntext %s\n%s\n\n%s\n", strings.Repeat("-", 80), key, strings.Repeat("-", 80),
					strings.ReplaceAll(strings.TrimSpace(string(t.content)), "\r\n", "\n"))
			}
		}
	}

	return []byte(noticesHead + list.String() + all.String()), nil
}

// SBOM lists the modules in CycloneDX 1.5, for whoever looks for a part that turned out to be
// unsafe. when is the time of the commit.
func SBOM(modules []Module, version string, when time.Time) ([]byte, error) {
	type licence struct {
		ID   string `json:"id,omitempty"`
		Name string `json:"name,omitempty"` // of one that SPDX does not list
	}
	type component struct {
		Type     string               `json:"type"`
		Name     string               `json:"name"`
		Version  string               `json:"version"`
		PURL     string               `json:"purl"`
		Licenses []map[string]licence `json:"licenses"`
	}
	components := make([]component, 0, len(modules))
	for _, m := range modules {
		id, _, err := m.licence()
		if err != nil {
			return nil, err
		}

		l := licence{ID: id}
		if name, ok := strings.CutPrefix(id, "LicenseRef-"); ok {
			l = licence{Name: name}
		}

		components = append(components, component{
			Type: "library", Name: m.Path, Version: m.Version, PURL: "pkg:golang/" + m.Path + "@" + m.Version,
			Licenses: []map[string]licence{{"license": l}},
		})
	}

	out, err := json.MarshalIndent(map[string]any{
		"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
		"metadata": map[string]any{
			"timestamp": when.UTC().Format(time.RFC3339),
			"component": component{
				Type: "application", Name: "escrow-relayer", Version: version,
				PURL:     "pkg:golang/github.com/fusion-prime/escrow-relayer@" + version,
				Licenses: []map[string]licence{{"license": {ID: "Apache-2.0"}}},
			},
		},
		"components": components,
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write the list of parts: %w", err)
	}

	return append(out, '\n'), nil
}
