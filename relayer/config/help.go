package config

import (
	"fmt"
	"io"
	"reflect"
	"time"
)

// Variable is a row of the documentation.
type Variable struct {
	Name, Type, Default, Help string
	// Needed says whether it must be set: "yes"; "or X", where X may take its place; or empty.
	Needed string
}

// Variables lists everything that Load reads.
func Variables() (all []Variable) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Config]()) {
		name := f.Tag.Get("env")
		if name == "" || name == "-" {
			continue
		}

		t := f.Type.String()
		switch {
		case f.Type == reflect.TypeFor[time.Duration]():
			t = "duration"
		case f.Type.Kind() == reflect.Slice:
			t = "list"
		case f.Type.Kind() == reflect.String:
			t = "text"
		case f.Type.Kind() != reflect.Bool:
			t = "number"
		}

		all = append(all, Variable{name, t, f.Tag.Get("envDefault"), f.Tag.Get("help"), f.Tag.Get("needed")})
	}

	return all
}

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
