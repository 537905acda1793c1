package main

import (
	"fmt"
	"io/fs"
	"os"

	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
	"github.com/fusion-prime/escrow-relayer/relayer/web"
)

// files examines the file with the token, and those that hold keys. One that other users can read is
// a note rather than a fault: Kubernetes and Cloud Run mount secrets that way by default, in a
// container with a single user.
func (d *doctor) files() {
	if path := d.cfg.HTTPTokenFile; path != "" &&
		d.judge("HTTP_TOKEN_FILE", path+" has a token that is long enough", web.CheckToken(path)) {
		d.secretFile("token", path)
	}

	if d.cfg.SendersFile == "" {
		return
	}

	accounts, err := send.OpenAccounts(d.cfg.SendersFile)
	if !d.judge("SENDERS_FILE", fmt.Sprintf("%d senders in %s", len(accounts), d.cfg.SendersFile), err) {
		return
	}

	seen := map[string]bool{}
	for _, a := range accounts {
		for _, f := range []struct{ what, path string }{{"keystore", a.Keystore}, {"password", a.PasswordFile},
			{"client key", a.ClientKey}} {
			if f.path != "" && !seen[f.path] { // senders may share a password
				seen[f.path] = true
				d.secretFile(f.what, f.path)
			}
		}
	}
}

// secretFile reports which users can read a file, without opening it.
func (d *doctor) secretFile(what, path string) {
	const others fs.FileMode = 0o077
	info, err := os.Stat(path)
	if err != nil {
		d.judge(what, "", fmt.Errorf("of a sender in SENDERS_FILE: %w", err))
		return
	}

	if mode := info.Mode().Perm(); mode&others != 0 {
		d.say(note, what, "%s has mode %04o: users besides its owner have rights on it; run `chmod 600 %s`, "+
			"or for a mounted secret set its mode to 0400, or to 0440 where the process reads it by its group "+
			"(Kubernetes: defaultMode and fsGroup)",
			path, mode, path)

		return
	}

	d.say(fine, what, "only the owner of %s has rights on it", path)
}
