// Package release makes what people install: archives of the binary for each platform, with
// checksums, the licences of all that is linked into it and a list of its parts (SBOM). The same
// commit gives the same bytes.
package release

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Package is what is built.
const Package = "./cmd/escrow-relayer"

// Module is one that is linked into the binary.
type Module struct {
	Path, Version string
	dir           string
}

// Platform is what a binary is built for.
type Platform struct {
	OS, Arch string
}

// Platforms are those of a release.
var Platforms = []Platform{
	{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"},
}

// environ builds for the platform without cgo, from go.mod alone.
func (p Platform) environ() []string {
	return append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.OS, "GOARCH="+p.Arch, "GOFLAGS=-mod=readonly", "GOAMD64=v1",
		"GOARM64=v8.0")
}

// Modules lists what is linked into any of the platforms' binaries, by path. root is the repository's folder.
func Modules(ctx context.Context, root string, platforms ...Platform) ([]Module, error) {
	const linked = `{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}`
	found := map[string]Module{}
	for _, p := range platforms {
		cmd := exec.CommandContext(ctx, "go", "list", "-deps", "-f", linked, Package)
		cmd.Dir, cmd.Env = root, p.environ()
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("list what %s/%s links: %w", p.OS, p.Arch, err)
		}

		for line := range strings.Lines(string(out)) {
			if of := strings.SplitN(strings.TrimSpace(line), " ", 3); len(of) == 3 {
				found[of[0]] = Module{of[0], of[1], of[2]}
			}
		}
	}

	return slices.SortedFunc(maps.Values(found), func(a, b Module) int { return strings.Compare(a.Path, b.Path) }), nil
}

var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([.-].*)?$`)

// text is a licence file of a module.
type text struct {
	name    string
	content []byte
}

// texts are the licence files of a module, by name.
func (m Module) texts() (all []text, err error) {
	entries, err := os.ReadDir(m.dir)
	if err != nil {
		return nil, fmt.Errorf("look for the licence of %s: %w", m.Path, err)
	}

	for _, e := range entries {
		if e.IsDir() || !licenceFile.MatchString(e.Name()) {
			continue
		}

		content, err := os.ReadFile(filepath.Join(m.dir, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("read the licence of %s: %w", m.Path, err)
		}

		all = append(all, text{e.Name(), content})
	}

	if len(all) == 0 && inSource[m.Path] == "" {
		return nil, fmt.Errorf("%s has no licence file: it may not be passed on", m.Path)
	}

	return all, nil
}

// inSource are modules that state their licence at the head of each source file, and have no file
// for it; somebody has read them.
var inSource = map[string]string{"github.com/holiman/bloomfilter/v2": "MIT"}

// licences maps words of a licence's text to its SPDX identifier; the first that fits counts.
var licences = []struct{ words, id string }{
	{"Mozilla Public License", "MPL-2.0"}, // names the others
	{"GNU LESSER GENERAL PUBLIC LICENSE", "LGPL-3.0-only"},
	{"GNU GENERAL PUBLIC LICENSE", "GPL-3.0-only"},
	{"Apache License", "Apache-2.0"},
	{"Redistribution and use in source and binary forms", "BSD-3-Clause"},
	{"Permission is hereby granted, free of charge", "MIT"},
	{"Permission to use, copy, modify, and/or distribute", "ISC"},
	{"Permission to use, copy, modify, and distribute", "ISC"},
	{"This is free and unencumbered software", "Unlicense"},
	{"CC0 1.0 Universal", "CC0-1.0"},
	{"public domain", "LicenseRef-public-domain"},
}

// licence is the SPDX identifier of a module's licence, with its texts. What is not known is an error: somebody has
// to read it.
func (m Module) licence() (id string, texts []text, err error) {
	if texts, err = m.texts(); err != nil || len(texts) == 0 {
		return inSource[m.Path], texts, err
	}

	var names []string
	var all strings.Builder
	for _, t := range texts {
		names = append(names, t.name)
		if low := strings.ToLower(t.name); !strings.HasPrefix(low, "notice") && !strings.HasPrefix(low, "patents") {
			all.Write(t.content)
		}
	}

	flat := strings.ToLower(strings.Join(strings.Fields(all.String()), " "))
	for _, l := range licences {
		if strings.Contains(flat, strings.ToLower(l.words)) {
			return l.id, texts, nil
		}
	}

	return "", nil, fmt.Errorf("the licence of %s (%s) is not one that this knows: read it, and add it to licences",
		m.Path, strings.Join(names, ", "))
}
