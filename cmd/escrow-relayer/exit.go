package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
	"github.com/fusion-prime/escrow-relayer/relayer/start"
)

// Exit codes, the same for every command.
const (
	exitWell = 0
	// the command has an answer, and it is no: a difference, a problem, a fleet with gaps
	exitNo          = 1
	exitRefused     = 2   // the command has no answer: usage, configuration, or a dependency that is out of reach
	exitInterrupted = 130 // 128 + SIGINT: ended before there was a result
)

// errQuiet is the answer no after output that shows it already.
var errQuiet = errors.New("")

// no is the answer no, in words.
type no struct{ error }

func (n no) Unwrap() error { return n.error }

// refusal turns an error that is an answer into the answer no: a sender or command is in a state that forbids the
// operator's request.
func refusal(err error) error {
	if errors.Is(err, send.ErrOperation) {
		return no{err}
	}

	return err
}

// interrupted means that the command was interrupted before it had a result.
type interrupted struct{ error }

// exitCode is the result of a command. Any error but a known answer means that the
// command has none.
func exitCode(err error) int {
	switch {
	case err == nil:
		return exitWell
	case errors.Is(err, start.ErrRefused):
		// before the answer no: an instance that ends for good for another reason ends with 1
		return exitRefused
	case errors.Is(err, errQuiet), errors.As(err, new(no)):
		return exitNo
	case errors.As(err, new(interrupted)):
		return exitInterrupted
	}

	return exitRefused
}

// meaningOfNo explains, for each command with an answer, what no means.
var meaningOfNo = map[string]string{
	"run":     "the instance ended by itself although its configuration is right: restart it",
	"status":  "something needs a person",
	"audit":   "chain and database differ",
	"replay":  "no stored event matches",
	"doctor":  "something needs a person",
	"wait":    "the fleet was not whole within --timeout",
	"migrate": "with --check, a migration is missing",
	"show":    "there is no such command",
	"cancel":  "there is no such command that is open",
	"pause":   "the sender is halted, or was never used",
	"resume":  "the sender is halted, or was never used",

	"adopt-nonce": "the sender was never used",
}

// describeExits adds the exit codes to the help of a command and of those below it.
func describeExits(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		describeExits(c)
	}

	if cmd.Long == "" {
		cmd.Long = cmd.Short + "."
	}

	cmd.Long += "\n\nExit codes: 0 well; "
	if meaning := meaningOfNo[cmd.Name()]; meaning != "" {
		cmd.Long += "1 " + meaning + "; "
	}

	cmd.Long += "2 could not ask: usage, configuration, or something out of reach; 130 interrupted."
}

// group is a command that needs a subcommand. Without one it prints its help to stderr and exits
// with an error.
func group(cmd *cobra.Command) *cobra.Command {
	cmd.Args = cobra.ArbitraryArgs
	cmd.SuggestionsMinimumDistance = 2 // letters
	cmd.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			c.SetOut(c.ErrOrStderr())
			_ = c.Help()

			return fmt.Errorf("%s needs a command", c.CommandPath())
		}

		hint := ""
		if similar := c.SuggestionsFor(args[0]); len(similar) > 0 {
			hint = fmt.Sprintf("; did you mean %s", similar[0])
		}

		return fmt.Errorf("%s has no command %q%s: see %s --help", c.CommandPath(), args[0], hint, c.CommandPath())
	}

	return cmd
}
