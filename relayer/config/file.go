package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Chains reads the configuration of each chain with load, which is Load or LoadDatabase: from the
// file named by CONFIG_FILE, or else from the environment alone, which describes one chain. The
// entry of a chain overrides the environment, and the environment overrides the common part of the
// file. The error is Problems: every mistake, in all chains.
func Chains(environ map[string]string, load func(map[string]string) (*Config, error)) ([]*Config, error) {
	path := strings.TrimSpace(environ["CONFIG_FILE"])
	if path == "" {
		c, err := load(environ)
		if err != nil {
			return nil, err
		}

		c.Chains = 1

		return []*Config{c}, nil
	}

	f := &file{path: path, environ: environ, used: map[string]bool{}, common: part{set: map[string]string{}}}
	f.read()
	f.scopes()
	f.distinct()
	all := f.load(load)
	if len(f.problems) > 0 {
		return nil, f.problems
	}

	for _, c := range all {
		c.Chains = len(all)
	}

	return all, nil
}

// file is a configuration file while it is read.
type file struct {
	path     string
	environ  map[string]string // of the process
	readable bool              // by every user of the machine
	used     map[string]bool   // variables of the environment that it refers to
	common   part
	chains   []part
	problems Problems
}

// part is one mapping of the file: the common part, or a chain.
type part struct {
	path string            // as chains[2]; empty: the common part
	set  map[string]string // variables; an empty value is an unset one
}

// at is the path of a variable in a part.
func (p part) at(variable string) string {
	key := strings.ToLower(variable)
	if p.path == "" {
		return key
	}

	return p.path + "." + key
}

// note adds a problem, once.
func (f *file) note(p Problem) {
	if !slices.Contains(f.problems, p) {
		f.problems = append(f.problems, p)
	}
}

// hidden replaces a value that may be a secret.
const hidden = "***"

func (f *file) say(path, format string, args ...any) {
	f.note(Problem{path, hidden, fmt.Sprintf(format, args...)})
}

// scopes refuses misplaced settings: those of one chain in the common part or in the environment,
// and those of the whole process in the entry of a chain.
func (f *file) scopes() {
	for _, v := range Variables() {
		_, common := f.common.set[v.Name]
		if v.Scope == "chain" && common {
			f.say(f.common.at(v.Name), "belongs to one chain: move it into the entry of that chain, below chains")
		}

		if v.Scope == "chain" && strings.TrimSpace(f.environ[v.Name]) != "" && !f.used[v.Name] {
			f.say(v.Name, "belongs to one chain, and the chains are those of CONFIG_FILE=%s: unset it. "+
				"--chain chooses a chain of the file", f.path)
		}

		for _, c := range f.chains {
			if _, set := c.set[v.Name]; set && v.Scope == "process" {
				f.say(c.at(v.Name), "holds for the whole process: move it to the top of the file")
			}
		}
	}
}

// merged is the environment in which a chain's settings are read.
func (f *file) merged(c part) map[string]string {
	all := maps.Clone(f.environ)
	for _, v := range Variables() {
		if v.Scope == "chain" {
			delete(all, v.Name)
		}
	}

	for name := range f.used { // it may have almost the name of a setting
		if _, known := byName[name]; !known {
			delete(all, name)
		}
	}

	for name, value := range f.common.set {
		if strings.TrimSpace(all[name]) == "" {
			all[name] = value
		}
	}

	maps.Copy(all, c.set)

	return all
}

// apart are variables that must differ between chains, and why.
var apart = map[string]string{
	"CHAIN_ID":                 "a chain has one entry: list all its factories there",
	"COMMANDS_PORT":            "each chain listens for commands on a port of its own, or all of them on PORT",
	"COMMANDS_SUBSCRIPTION_ID": "a command is for one chain, and the other one would refuse it",
}

// distinct refuses chains that share such a value.
func (f *file) distinct() {
	for _, name := range slices.Sorted(maps.Keys(apart)) {
		first := map[string]part{}
		for _, c := range f.chains {
			value := f.merged(c)[name]
			if n, err := strconv.ParseInt(value, 10, 64); err == nil {
				value = strconv.FormatInt(n, 10)
			}

			other, taken := first[value]
			switch {
			case value == "" || value == "0":
			case taken:
				f.note(Problem{c.at(name), value, "is that of " + other.path + " too: " + apart[name] + "; correct one of the two"})
			default:
				first[value] = c
			}
		}
	}
}

// load reads the settings of each chain.
func (f *file) load(load func(map[string]string) (*Config, error)) (all []*Config) {
	warned, told := map[Problem]bool{}, map[string]bool{}
	for _, p := range f.problems { // an unreadable setting is present
		told[p.Variable] = true
	}

	for _, c := range f.chains {
		told[c.at("RPC_URL")] = told[c.at("RPC_URL")] || told[c.at("RPC_URLS")] // one may be in place of the other
		cfg, err := load(f.merged(c))
		if problems, wrong := errors.AsType[Problems](err); wrong {
			for _, p := range problems {
				if p = f.placed(c, p); !told[p.Variable] {
					f.note(p)
				}
			}

			continue
		}

		var warnings []Problem
		for _, w := range cfg.Warnings {
			if w = f.placed(c, w); !warned[w] {
				warnings = append(warnings, w)
			}

			warned[w] = true
		}

		cfg.Warnings = warnings
		for i, s := range cfg.settings {
			cfg.settings[i].From = f.origin(c, s)
		}

		all = append(all, cfg)
	}

	return all
}

// placed locates a problem: where the value is, or should be.
func (f *file) placed(c part, p Problem) Problem {
	v, known := byName[p.Variable]
	_, ofChain := c.set[v.Name]
	_, common := f.common.set[v.Name]
	switch {
	case !known:
	case ofChain || v.Scope == "chain":
		p.Variable = c.at(v.Name)
	case strings.TrimSpace(f.environ[v.Name]) != "":
	case common || v.Scope == "process":
		p.Variable = f.common.at(v.Name)
	default:
		p.Variable = c.at(v.Name)
	}

	return p
}

// origin returns where a setting of a chain comes from.
func (f *file) origin(c part, s Setting) string {
	_, ofChain := c.set[s.Name]
	_, common := f.common.set[s.Name]
	switch {
	case ofChain:
		return c.path
	case s.From == fromEnvironment && common && strings.TrimSpace(f.environ[s.Name]) == "":
		return "common part"
	}

	return s.From
}
