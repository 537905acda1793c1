package config

import (
	"fmt"
	"io"
	"iter"
	"reflect"
	"time"
)

// Variable is a row of the documentation.
type Variable struct {
	Name, Type, Default, Help string
	// Needed tells whether it must be set: "yes"; "or X", if X may replace it; or empty.
	Needed string
	// Scope is where a configuration file may set it: chain, process (in the common part),
	// environment (only there), or empty: everywhere.
	Scope string
	// Secret marks a value that is shown in part only.
	Secret bool
}

// fields are those that Load reads.
func fields() iter.Seq2[string, reflect.StructField] {
	return func(yield func(variable string, f reflect.StructField) bool) {
		for f := range reflect.TypeFor[Config]().Fields() {
			if name := f.Tag.Get("env"); name != "" && name != "-" && !yield(name, f) {
				return
			}
		}
	}
}

// kind is the documented type of a field, and what its value must be.
func kind(f reflect.StructField) (documented, must string) {
	switch {
	case f.Type == reflect.TypeFor[time.Duration]():
		return "duration", "a duration such as 30s or 5m"
	case f.Type.Kind() == reflect.Bool:
		return "bool", "true or false"
	case f.Type.Kind() == reflect.Slice:
		return "list", "a comma-separated list"
	case f.Type.Kind() == reflect.String:
		return "text", "text"
	case f.Type.Kind() == reflect.Float64:
		return "number", "a number"
	case f.Type.Kind() == reflect.Uint64:
		return "number", "a whole number, 0 or more"
	}

	return "number", "a whole number"
}

// Variables lists everything that Load reads.
func Variables() (all []Variable) {
	for name, f := range fields() {
		documented, _ := kind(f)
		all = append(all, Variable{
			Name: name, Type: documented, Default: f.Tag.Get("envDefault"), Help: f.Tag.Get("help"), Needed: f.Tag.Get("needed"),
			Scope: f.Tag.Get("scope"), Secret: f.Tag.Get("secret") == "yes",
		})
	}

	return all
}

// byName has the variables by their name.
var byName = func() map[string]Variable {
	all := map[string]Variable{}
	for _, v := range Variables() {
		all[v.Name] = v
	}

	return all
}()

// Help writes the variables as text.
func Help(w io.Writer) {
	for _, v := range Variables() {
		d := ""
		switch {
		case v.Needed == "yes":
			d = " (required)"
		case v.Needed != "":
			d = " (required, " + v.Needed + ")"
		case v.Default != "":
			d = " (default " + v.Default + ")"
		}

		fmt.Fprintf(w, "  %-24s %-8s %s%s\n", v.Name, v.Type, v.Help, d)
	}
}
