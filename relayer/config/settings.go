package config

import "slices"

// Setting is a variable of an instance: its value without secrets, and its origin: the environment,
// the common part of the file, the entry of a chain as chains[2], or the default.
type Setting struct {
	Name, Value, From string
}

// FromDefault is the origin of a setting that neither the environment nor the file sets.
const FromDefault = "default"

const fromEnvironment = "environment"

// Settings are all variables, in the order of the documentation.
func (c *Config) Settings() []Setting { return slices.Clone(c.settings) }

// settings lists every variable with its value.
func (l *loader) settings() (all []Setting) {
	for name, f := range fields() {
		s := Setting{Name: name, Value: f.Tag.Get("envDefault"), From: FromDefault}
		if value, set := l.environ[name]; set {
			s.Value, s.From = l.shown(name, value), fromEnvironment
		} else if name == "INSTANCE_ID" {
			s.Value = l.c.InstanceID // the host's name
		}

		all = append(all, s)
	}

	return all
}
