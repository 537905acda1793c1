package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/config"
)

// Files with keys that users besides their owner can read are noted with the remedy, and are no fault: that is
// how secrets are mounted. A file that is missing is one. The contents are never shown.
func TestDoctorFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, content string, mode fs.FileMode) {
		require.NoError(t, os.RemoveAll(path(name))) // it may be one that cannot be written to
		require.NoError(t, os.WriteFile(path(name), []byte(content), 0o600))
		require.NoError(t, os.Chmod(path(name), mode)) // whatever the umask is
	}
	senders := fmt.Sprintf(`{"senders":[
		{"address":"0x0000000000000000000000000000000000000001","keystore":%q,"password_file":%q,
			"max_fee":"1","day_fees":"1"},
		{"address":"0x0000000000000000000000000000000000000002","keystore":%q,"password_file":%q,
			"max_fee":"1","day_fees":"1"},
		{"address":"0x0000000000000000000000000000000000000003","kms":"k","max_fee":"1","day_fees":"1"}]}`,
		path("key1"), path("password"), path("key2"), path("password"))
	write("senders.json", senders, 0o644) // holds no secret
	examine := func(file string) *doctor {
		cfg := &config.Config{SendersFile: file}
		d := &doctor{cfg: cfg, secrets: cfg.Secrets(), of: "files"}
		d.files()

		return d
	}

	require.Empty(t, examine("").Findings, "without senders there is nothing to look at")

	for _, c := range []struct {
		key, password fs.FileMode
		keyV, passV   verdict
	}{
		{0o600, 0o400, fine, fine}, {0o640, 0o600, note, fine}, {0o600, 0o604, fine, note}, {0o440, 0o444, note, note},
		{0o620, 0o600, note, fine},
	} {
		write("key1", secretKey, c.key)
		write("key2", secretKey, 0o600)
		write("password", secretPassword, c.password)
		d := examine(path("senders.json"))
		require.False(t, d.Sick, "%+v", d.Findings)
		require.Len(t, d.Findings, 4, "the senders file, two keystores, and the password once: %+v", d.Findings)
		require.Equal(t, finding{fine, "files", "SENDERS_FILE", "3 senders in " + path("senders.json")}, d.Findings[0])
		for i, want := range map[int]verdict{1: c.keyV, 2: c.passV, 3: fine} {
			f := d.Findings[i]
			require.Equal(t, want, f.Verdict, "%v: %+v", c, f)
			require.Contains(t, f.Found, dir)
			noSecret(t, f.Found)
			if want == note {
				require.Contains(t, f.Found, "chmod 600 "+path([]string{"", "key1", "password"}[i]))
				require.Contains(t, f.Found, fmt.Sprintf("mode %04o", []fs.FileMode{0, c.key, c.password}[i]))
			}
		}
	}

	for _, c := range []struct {
		token string
		want  verdict
	}{{"", wrong}, {"too short", wrong}, {secretPassword + "0123456789abcdef", fine}} {
		write("token", c.token, 0o600)
		cfg := &config.Config{HTTPTokenFile: path("token")}
		d := &doctor{cfg: cfg, secrets: cfg.Secrets(), of: "files"}
		d.files()
		v, found := d.verdict("files", "HTTP_TOKEN_FILE")
		require.Equal(t, c.want, v, c.token)
		noSecret(t, found)
	}

	require.NoError(t, os.Remove(path("key2")))
	d := examine(path("senders.json"))
	require.True(t, d.Sick)
	v, found := d.verdict("files", "keystore")
	require.Equal(t, wrong, v)
	require.Contains(t, found, path("key2"))

	write("senders.json", `{"senders":[]}`, 0o600)
	d = examine(path("senders.json"))
	require.True(t, d.Sick)
	v, _ = d.verdict("files", "SENDERS_FILE")
	require.Equal(t, wrong, v)
}
