package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxFile bounds the configuration file, and each file that it names by file:.
const maxFile = 1 << 20 // bytes

// read reads the file into parts.
func (f *file) read() {
	root, err := f.parse()
	if err != nil {
		f.note(Problem{"CONFIG_FILE", f.path, err.Error()})
		return
	}

	if root.Kind != yaml.MappingNode {
		f.note(Problem{"CONFIG_FILE", f.path, "must hold keys and values: chains, and what they have in common"})
		return
	}

	list := f.mapping(f.common, root)
	if list == nil || list.Kind != yaml.SequenceNode || len(list.Content) == 0 {
		f.note(Problem{"chains", "(not set)", "is missing, or no list: list the chains to follow, each with " +
			"chain_id, rpc_urls, factory_address and start_block"})
		return
	}

	for i, node := range list.Content {
		p := part{path: fmt.Sprintf("chains[%d]", i), set: map[string]string{}}
		if node = target(node); node.Kind != yaml.MappingNode {
			f.say(p.path, "must hold keys and values, at least chain_id, rpc_urls and factory_address")
			continue
		}

		f.mapping(p, node)
		f.chains = append(f.chains, p)
	}
}

// inLine finds the line in an error of the YAML library. The rest of such an error may quote a
// secret.
var inLine = regexp.MustCompile(`line \d+`)

// parse reads the one document of the file.
func (f *file) parse() (*yaml.Node, error) {
	text, err := readBounded(f.path)
	if err != nil {
		return nil, err
	}

	if info, err := os.Stat(f.path); err == nil {
		f.readable = info.Mode().Perm()&0o004 != 0
	}

	var doc, second yaml.Node
	d := yaml.NewDecoder(strings.NewReader(text))
	if err := d.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("is empty: list the chains to follow under chains")
		}

		return nil, fmt.Errorf("is not YAML: look at %s, and put values with : # & * ! %% @ in quotes",
			inLine.FindString(err.Error()+" line 1"))
	}

	if d.Decode(&second) == nil {
		return nil, errors.New("holds several documents: remove the lines that are ---")
	}

	return target(doc.Content[0]), nil
}

// readBounded reads a file of at most maxFile bytes.
func readBounded(path string) (string, error) {
	r, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("cannot be read: %w", errors.Unwrap(err))
	}
	defer func() { _ = r.Close() }()
	text, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("cannot be read: %w", errors.Unwrap(err))
	case len(text) > maxFile:
		return "", fmt.Errorf("is larger than %d bytes: name another file", maxFile)
	}

	return string(text), nil
}

// target is the node that an alias stands for.
func target(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}

	return n
}

// mapping reads the settings of a part, and returns what the common part has under chains.
func (f *file) mapping(p part, node *yaml.Node) (chains *yaml.Node) {
	seen := map[string]bool{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i].Value, target(node.Content[i+1])
		path := part{path: p.path}.at(key)
		switch {
		case seen[key]:
			f.say(path, "is set twice: remove one of the two")
		case key == "chains" && p.path == "":
			chains = value
		default:
			f.setting(p, path, key, value)
		}

		seen[key] = true
	}

	return chains
}

// setting reads one value of a part.
func (f *file) setting(p part, path, key string, value *yaml.Node) {
	v, known := byName[strings.ToUpper(key)]
	if !known || key != strings.ToLower(key) || v.Scope == "environment" {
		f.say(path, "is not a setting%s", meantBy(key))
		return
	}

	values := []*yaml.Node{value}
	if value.Kind == yaml.SequenceNode && v.Type == "list" {
		values = value.Content
	}

	var texts []string
	for _, n := range values {
		if n = target(n); n.Kind != yaml.ScalarNode {
			if v.Type == "list" {
				f.say(path, "must be a list of texts")
			} else {
				f.say(path, "must be one value: %s; put quotes around a value that begins with [ or {", v.Help)
			}

			return
		}

		if n.Tag == "!!null" {
			continue
		}

		text, err := f.resolve(n.Value)
		if err != nil {
			f.say(path, "%s", err)
			continue
		}

		if f.readable && v.Secret && holdsSecret(v.Name, n.Value) {
			f.say(path, "holds a secret in a file that every user can read: chmod o= %s, or name it as ${VARIABLE} or file:PATH",
				f.path)
		}

		texts = append(texts, text)
	}

	p.set[v.Name] = strings.TrimSpace(strings.Join(texts, ","))
}

// meantBy suggests the setting that an unknown key probably means.
func meantBy(key string) string {
	name := strings.ToUpper(key)
	_, known := byName[name]
	switch {
	case name == "CONFIG_FILE":
		return " of this file, but of the environment: remove it"
	case strings.HasPrefix(name, "OTEL_"):
		return " of this file: OpenTelemetry's variables come from the environment"
	case known:
		return ": was " + strings.ToLower(key) + " meant?"
	}

	// the one with the most similar name
	names := slices.Sorted(maps.Keys(byName))
	near := slices.MinFunc(names, func(a, b string) int { return distance(name, a) - distance(name, b) })

	return ": was " + strings.ToLower(cmp.Or(nearest(name, names), near)) + " meant? escrow-relayer run --help lists all"
}

// reference is ${VARIABLE} in a value.
var (
	reference    = regexp.MustCompile(`\$\{[^}]*\}?`)
	variableName = regexp.MustCompile(`^\$\{([A-Za-z_][A-Za-z0-9_]*)\}$`)
)

// resolve inserts the environment's values for ${VARIABLE}, and the content of the file for
// file:PATH. A path is relative to the configuration file. Its error shows no value.
func (f *file) resolve(raw string) (text string, err error) {
	text = reference.ReplaceAllStringFunc(raw, func(found string) string {
		name := variableName.FindStringSubmatch(found)
		if name == nil {
			err = errors.New("has ${ without a name of a variable and }: write ${VARIABLE}")
			return ""
		}

		f.used[name[1]] = true
		if strings.TrimSpace(f.environ[name[1]]) == "" {
			err = fmt.Errorf("refers to ${%s}, which is not set in the environment: set it", name[1])
		}

		return strings.TrimSpace(f.environ[name[1]])
	})
	path, isFile := strings.CutPrefix(text, "file:")
	if err != nil || !isFile || !strings.HasPrefix(raw, "file:") {
		return text, err
	}

	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(f.path), path)
	}

	if text, err = readBounded(path); err != nil {
		return "", fmt.Errorf("names by file: a file that %w", err)
	}

	return strings.TrimSpace(text), nil
}

// holdsSecret reports whether a value, as written in the file, may contain a password or a key.
func holdsSecret(name, raw string) bool {
	if raw == "" || strings.HasPrefix(raw, "file:") || strings.Contains(raw, "${") {
		return false
	}

	u, err := url.Parse(raw)
	if err != nil || u.Host == "" {
		return true
	}

	_, password := u.User.Password()
	key := strings.HasPrefix(name, "RPC_") && (strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil)

	return password || key
}
