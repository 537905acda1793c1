package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// operatorPages are the README and everything below deploy.
func operatorPages(t *testing.T) map[string]string {
	found := map[string]string{}
	add := func(name string) {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		found[name] = string(text)
	}
	add("../../README.md")
	require.NoError(t, filepath.WalkDir("../../deploy", func(name string, _ fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(name) == ".md" {
			add(name)
		}

		return err
	}))

	return found
}

var (
	fence    = regexp.MustCompile("(?s)```sh\n(.*?)```")
	indented = regexp.MustCompile(`(?m)^ {4,}.+$`)
	quoted   = regexp.MustCompile("`([^`\n]+)`")
	// At the start of a line or after an operator of the shell, perhaps behind assignments; up to a
	// comment, a redirection, the next operator or the end of a subshell.
	invocation = regexp.MustCompile(`(?m)(?:^|&&|\|\||;|\bdo|\bthen)[ \t]*(?:[A-Z_]+=\S+ +)*` +
		`(?:bin/)?escrow-relayer( [^#;&|<>)\n]*)`)
	// What stands for a value in a page: a word in capitals, a variable of the shell, or an ellipsis.
	placeholder = regexp.MustCompile(`^\$?[A-Z][A-Z0-9_]*$|…`)
	words       = regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`)
)

// Every command line that a page gives to the binary is one that it understands: the subcommand,
// the flags and their values.
func TestPagesGiveCommandLinesThatParse(t *testing.T) {
	checked := 0
	for name, page := range operatorPages(t) {
		var code []string
		for _, m := range fence.FindAllStringSubmatch(page, -1) {
			code = append(code, strings.ReplaceAll(m[1], "\\\n", " "))
		}

		for _, m := range quoted.FindAllStringSubmatch(regexp.MustCompile("(?s)```.*?```").ReplaceAllString(page, ""), -1) {
			code = append(code, m[1])
		}

		code = append(code, indented.FindAllString(page, -1)...)
		for _, c := range code {
			for _, m := range invocation.FindAllStringSubmatch(c, -1) {
				args := words.FindAllString(strings.TrimSpace(m[1]), -1)
				for i := range args {
					args[i] = placeholder.ReplaceAllString(strings.Trim(args[i], `'"`), "1")
				}

				cmd, rest, err := root().Find(args)
				require.NoError(t, err, "%s: escrow-relayer%s", name, m[1])
				rest = slices.DeleteFunc(rest, func(arg string) bool { return arg == "--help" }) // every command has it
				require.NoError(t, cmd.ParseFlags(rest), "%s: escrow-relayer%s", name, m[1])
				for _, left := range cmd.Flags().Args() {
					require.Equal(t, "1", left, "%s: escrow-relayer%s: %q is no argument of it", name, m[1], left) // an ellipsis
				}

				checked++
			}
		}
	}

	require.Greater(t, checked, 30)
	t.Log(checked, "command lines")
}
